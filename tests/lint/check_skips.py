# SPDX-License-Identifier: Apache-2.0
"""Each line of tests/skips.txt means a test that there is and a condition that can be found out; and pytest runs no test without
the rules that look the list up."""
import pathlib
import re
import sys

import lintlib
from lintlib import Case, offence

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))
import ledger  # noqa: E402 pylint: disable=wrong-import-position

_TEST = re.compile(r"^def (test_\w+)|^START_TEST\((\w+)\)", re.M)
_CHECK = re.compile(r"hvd_check_test\((\w*)\$\{\w+\} LABEL (\w+)")
_CASE = re.compile(r"^def case_(\w+)", re.M)


def tests_of(tree, path):
    """The names of a file's tests, as skips have them; with its cases for parameters, where it has such."""
    text = tree.read(path)
    for test, check in _TEST.findall(text):
        yield test or check
        yield from (f"{test}[{case}]" for case in _CASE.findall(text))


def _is_in_a_loop(label, name, text):
    """Whether the loops of a CMakeLists.txt can make a C test of this name, as in hvd_check_test(node_${name} LABEL unit ...)."""
    return any(name.startswith(prefix) and re.search(rf"(?<!\w){re.escape(name[len(prefix):])}(?!\w)", text)
               for prefix, made in _CHECK.findall(text) if made == label)


def _is_of_pytest(tree, label, name):
    """Whether it is a file for which hvt_pytest makes a test."""
    return any(f"hvt_pytest({label} " in tree.read(path) and path.replace("CMakeLists.txt", f"test_{name}.py") in tree.files
               for path in tree.named("CMakeLists.txt"))


def is_there(tree, pattern):
    """Whether there is a test for this line of tests/skips.txt, or of this name in ctest."""
    if "::" not in pattern:
        label, _, name = pattern.rstrip("*").partition(".")
        texts = [tree.read(path) for path in tree.named("CMakeLists.txt")]
        return _is_of_pytest(tree, label, name) or any(
            f" {label}.{name}" in text or f"hvd_{label}({name}" in text or f"hvd_check_test({name} LABEL {label}" in text
            or _is_in_a_loop(label, name, text) for text in texts)
    file, _, function = pattern.partition("::")
    path = f"tests/{file}"
    return path in tree.files and any(ledger.matches(test, function) for test in tests_of(tree, path))


def find(tree):
    path = "tests/skips.txt"
    if path in tree.files:
        seen = set()
        for number, entry in ledger.parse(tree.read(path)):
            if not entry:
                yield offence(path, number, "not three parts: test, condition, why")
            elif entry.condition not in ledger.CONDITIONS:
                yield offence(path, number, f"no condition of tests/harness/ledger.py: {entry.condition}")
            elif entry[:2] in seen:
                yield offence(path, number, "said twice")
            elif entry.condition.startswith(ledger.LEFT_OUT) and ("*" in entry.test or "::" in entry.test):
                yield offence(path, number, "what is left out is one test of ctest, by its whole name")
            elif not is_there(tree, entry.test):
                yield offence(path, number, f"there is no such test: {entry.test}")
            if entry:
                seen.add(entry[:2])
    for path in tree.files:
        if re.fullmatch(r"tests/.*/test_\w+\.py", path):
            rules = [f"{parent}/conftest.py" for parent in pathlib.PurePath(path).parents]
            if not any(rule in tree.files and "hvt." in tree.read(rule) for rule in rules):
                yield offence(path, 1, "no conftest.py beside it or above it loads hvt.rules")


_RULES = {"tests/a/conftest.py": "from hvt.plugin import *\n"}
_PYTHON = _RULES | {"tests/a/test_x.py": "def test_y():\n", "tests/a/test_k.py": "def case_z(keras):\n\n\ndef test_two(case):\n"}
_ADDED = _PYTHON | {"tests/a/CMakeLists.txt": "hvt_pytest(fault 9)\nhvd_check_test(c LABEL unit c.c)\nforeach(name a b)\n"
                                             "  hvd_check_test(l_${name} LABEL unit test_${name}.c)\n"}
CASES = [
    Case(_PYTHON | {"tests/skips.txt": "# none\n\na/test_x.py::test_y  not-root  why not\na/test_x.py::*  asan  why\n"}),
    Case({"tests/a/test_x.c": "START_TEST(it_is)\n", "tests/skips.txt": "a/test_x.c::it_*  tsan  why\n"}),
    Case({"tests/CMakeLists.txt": "hvd_lint(x)\nadd_test(NAME unit.y)\n", "tests/skips.txt": "lint.x  asan  why\nunit.y  asan  why\n"}),
    Case({"tests/CMakeLists.txt": "foreach(n x y)\n  hvd_check_test(a_${n} LABEL unit t.c)\nendforeach()\n"
                                  "hvd_check_test(b LABEL unit b.c)\n",
          "tests/skips.txt": "unit.a_y  asan  why\nunit.a_z  asan  why\nunit.b  asan  why\ncontract.a_x  asan  why\n"},
         {"tests/skips.txt:2", "tests/skips.txt:4"}),
    Case(_PYTHON | {"tests/skips.txt": "a/test_k.py::test_two[z]  keras-2  why\n"}),
    Case(_PYTHON | {"tests/skips.txt": "a/test_x.py::test_y  not-root\n"}, {"tests/skips.txt:1"}),
    Case(_PYTHON | {"tests/skips.txt": "a/test_x.py::test_y  on-mondays  why\n"}, {"tests/skips.txt:1"}),
    Case(_PYTHON | {"tests/skips.txt": "a/test_x.py::test_n  asan  why\na/test_n.py::*  asan  why\n"},
         {"tests/skips.txt:1", "tests/skips.txt:2"}),
    Case(_PYTHON | {"tests/skips.txt": "a/test_k.py::test_two[y]  keras-2  why\n"}, {"tests/skips.txt:1"}),
    Case({"tests/CMakeLists.txt": "hvd_lint(x)\n", "tests/skips.txt": "lint.y  tsan  why\n"}, {"tests/skips.txt:1"}),
    Case(_RULES | {"tests/a/test_x.py": "def test_y():\n", "tests/skips.txt": 2 * "a/test_x.py::*  asan  why\n"},
         {"tests/skips.txt:2"}),
    Case({"tests/a/test_x.py": "def test_y():\n"}, {"tests/a/test_x.py:1"}),
    Case(_ADDED | {"tests/skips.txt": "fault.x  ci-asan  why\nunit.c  ci-tsan  why\nunit.l_b  ci-tsan  why\n"}),
    Case(_ADDED | {"tests/skips.txt": "fault.y  ci-asan  why\nunit.x  ci-asan  why\nunit.d  ci-tsan  why\n"},
         {f"tests/skips.txt:{number}" for number in (1, 2, 3)}),
    Case(_ADDED | {"tests/skips.txt": "fault.*  ci-asan  why\na/test_x.py::test_y  ci-asan  why\n"},
         {"tests/skips.txt:1", "tests/skips.txt:2"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
