# SPDX-License-Identifier: Apache-2.0
"""Every row of the tables and every rule of docs/design/trust.md names tests that are there.

They stand in the column "test", and behind "Test:" at the end of a rule: `fault/test_a.py`: `test_one`, `test_two`;
`unit/test_b.c`. Paths are those below tests/, or of the whole tree. What follows a path is a function of a test in Python or C, or a
limit's name for fault/test_limits.py."""
import re

import lintlib
from lintlib import Case, offence

PAGE, LIMITS = "docs/design/trust.md", "fault/test_limits.py"
_RULE = re.compile(r"\* \*\*.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def _places(text):
    """(line, rule or row, what it says of tests)."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|---"):
            continue
        if line.startswith("|") and line.endswith("| test |"):
            inside = True
        elif line.startswith("|") and inside:
            yield number, line.strip("| ").split(" | ")[-1]
        else:
            inside = False
    for rule in _RULE.finditer(text):
        yield text.count("\n", 0, rule.start()) + 1, rule.group().partition("Test: ")[2]


def _is_there(tree, path, name):
    if path == LIMITS and not name.startswith("test_"):
        return f'"{name}"' in tree.read("base/limits.def")
    text = tree.read(f"tests/{path}")
    return f"def {name}(" in text if path.endswith(".py") else f"START_TEST({name})" in text


def _missing(tree, said):
    """The names that are not there, and whether any test is named."""
    path, named = None, False
    for name in re.findall(r"`([^`]+)`", said):
        if "/" in name:
            path, named = name, True
            if f"tests/{name}" not in tree.files and name not in tree.files:
                yield name
                path = None
        elif path and not _is_there(tree, path, name):
            yield f"{name} in {path}"
    if not named:
        yield "test named"


def find(tree):
    if PAGE not in tree.files:
        return
    for line, said in _places(tree.read(PAGE)):
        for name in _missing(tree, said):
            yield offence(PAGE, line, f"there is no {name}")


_HEAD = "| promise | test |\n|---|---|\n"
_FILES = {"tests/fault/test_x.py": "def test_a():\n    pass\n", "tests/unit/test_y.c": "START_TEST(one)\n", "bench/z.py": "",
          f"tests/{LIMITS}": "", "base/limits.def": 'HVI_LIMIT(a, "max-jobs")\n'}


def _case(text, line=0):
    return Case({PAGE: text, **_FILES}, {f"{PAGE}:{line}"} if line else ())


CASES = [
    _case(_HEAD + "| a | `fault/test_x.py`: `test_a`; `unit/test_y.c`: `one`; `bench/z.py`; `fault/test_limits.py`: `max-jobs` |\n"),
    _case(_HEAD + "| a | `fault/test_x.py`: `test_b` |\n", 3),
    _case(_HEAD + "| a | `unit/test_y.c`: `two` |\n", 3),
    _case(_HEAD + "| a | `unit/test_w.c` |\n", 3),
    _case(_HEAD + "| a | `fault/test_limits.py`: `max-oxen` |\n", 3),
    _case(_HEAD + "| a | none |\n", 3),
    _case("* **Rule.** It\n  holds.\n  Test: `fault/test_x.py`:\n  `test_a`.\n* **Other.** Test: `unit/test_y.c`.\n"),
    _case("* **Rule.** It\n  holds.\n* **Other.** Test: `unit/test_y.c`.\n", 1),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
