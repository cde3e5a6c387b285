# SPDX-License-Identifier: Apache-2.0
"""Every row of the table in docs/design/failure.md names existing tests, and these ask for the times that the row promises.

The last column has the form `fault/test_a.py`: `test_one`, `test_two`; `fault/test_b.py`: `test_three`, below tests/; C tests stand
there likewise, as a file alone, with names of its tests, or as ctest has them (unit.name). The column "within" is "–", or has times
like "100 ms" or "1 s + 100 ms", several with a semicolon between them; what stands in parentheses or code does not count: to a time
that an option sets belongs the time that may be added. Each time must be what a check_prompt asks for in one of the row's pytest
functions, or in a function of the same file that it calls, and a time that is promised twice in as many of them; and no check_prompt
there may ask for anything that no row with this test promises. `option` (5 s) must be hvdd's default."""
import ast
import collections
import re

import check_skips
import lintlib
from lintlib import Case, offence

PAGE = "docs/design/failure.md"
OPTIONS = "daemon/node/config.def"
_UNITS = {"ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?) (ms|s)\b")
_OPTION = re.compile(r'NODE_OPTION\(\w+, "([\w-]+)", TIME, "(\w+)",[^"]*"TIME",\s*"((?:[^"]|"\s*")*)"\)')
_DEFAULT = re.compile(r"`([\w-]+)` \((\d+ m?s)\)")


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def _rows(tree):
    """(line, cells) of the rows of the page's table, by the names of its columns."""
    columns = None
    for number, text in tree.lines(PAGE):
        if text.startswith("| event |"):
            columns = _cells(text)
        elif columns and not text.startswith("|"):
            return
        elif columns and not text.startswith("|---"):
            yield number, dict(zip(columns, _cells(text)))


def _defaults(tree):
    """Of hvdd's options that are times, as the page writes them; where 0 stands for another time, that one."""
    for name, value, text in _OPTION.findall(tree.read(OPTIONS) if OPTIONS in tree.files else ""):
        other = re.search(r"else (\d+ m?s)", text)
        yield name, other[1] if value == "0" and other else re.sub(r"(\d)(\D)", r"\1 \2", value)


def _promised(cell):
    """How often the column "within" has each time, in ns; 0 counts the promises without one."""
    if cell == "–":
        return collections.Counter()
    plain = re.sub(r"\([^)]*\)|`[^`]*`", "", cell)
    sums = [sum(float(number) * _UNITS[unit] for number, unit in _TIME.findall(part)) for part in plain.split(";")]
    return collections.Counter(round(ns) for ns in sums)


def _tests(cell):
    """(file, function) of each test in the column "test"; a file that stands alone has "", a test of ctest no file."""
    path, words = "", re.findall(r"`([^`]+)`", cell)
    for name, following in zip(words, words[1:] + ["/"]):
        if "/" not in name:
            yield path, name
        else:
            path = f"tests/{name}"
            if "/" in following:
                yield path, ""
    for name in re.findall(r"\b(?:unit|contract)\.\w+", re.sub(r"`[^`]*`", "", cell)):
        yield "", name


def _is_there(tree, path, name):
    if not path:
        return check_skips.is_there(tree, name)
    return path in tree.files and (not name or name in check_skips.tests_of(tree, path))


class Module:
    """A file of tests: which times each function asks check_prompt for."""

    def __init__(self, text):
        body = ast.parse(text).body
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        self.constants = {node.targets[0].id: node.value for node in body
                          if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}

    def _values(self, node):
        if isinstance(node, ast.IfExp):
            return self._values(node.body) | self._values(node.orelse)
        if isinstance(node, ast.Name):
            return self._values(self.constants.get(node.id))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return {a * b for a in self._values(node.left) for b in self._values(node.right)}
        return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, int) else set()

    def asked(self, name, seen=()):
        """Times in ns, of this function and of those it calls."""
        times = set()
        for node in ast.walk(self.functions[name]):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            called = node.func.id
            if called == "check_prompt":
                times |= self._values(node.args[2])
            elif called in self.functions and called not in (name, *seen):
                times |= self.asked(called, (name, *seen))
        return times


def _text(times):
    return ", ".join(f"{ns / 10**6:g} ms" for ns in sorted(times)) or "nothing"


def _read_rows(tree, rows):
    """Fills in (line, times, tests that may ask) of each row; yields what is wrong with a row alone."""
    defaults = dict(_defaults(tree))
    for line, row in _rows(tree):
        for name, value in _DEFAULT.findall(" ".join(row.values())):
            if value != defaults.get(name, value):
                yield offence(PAGE, line, f"the default of {name} is {defaults[name]}")
        tests = list(_tests(row["test"]))
        if not tests:
            yield offence(PAGE, line, "this row names no test")
        absent = [test for test in tests if not _is_there(tree, *test)]
        for path, name in absent:
            yield offence(PAGE, line, f"there is no {' in '.join(part for part in (name, path or 'ctest') if part)}")
        times = _promised(row["within"])
        if times.pop(0, 0):
            yield offence(PAGE, line, f"a time without a figure: {row['within']}")
        rows.append((line, times, [test for test in tests if test not in absent and test[0].endswith(".py") and test[1]]))


def find(tree):
    if PAGE not in tree.files:
        return
    rows, modules, promised = [], {}, {}
    yield from _read_rows(tree, rows)
    for _, times, tests in rows:
        for test in tests:
            modules.setdefault(test[0], Module(tree.read(test[0])))
            promised.setdefault(test, set()).update(times)
    for line, times, tests in rows:
        asked = {test: modules[test[0]].asked(test[1]) for test in tests}
        missing = set(times - collections.Counter(ns for each in asked.values() for ns in each))
        if missing:
            yield offence(PAGE, line, f"no test of this row, or too few, ask for {_text(missing)}")
        for test in tests:
            if asked[test] - promised[test]:
                yield offence(PAGE, line, f"{test[1]} asks for {_text(asked[test] - promised[test])}, which no row promises")


_HEAD = "# Failure\n\n| event | within | test |\n|---|---|---|\n"
_TEST = ("LIMIT_NS = 100_000_000\n\ndef check(x):\n    check_prompt('x', x, LIMIT_NS)\n\n"
         "def test_a():\n    check(1)\n\ndef test_b(how):\n    check_prompt('x', 1, 5_100_000_000 if how else 2 * LIMIT_NS)\n\n"
         "def test_c():\n    pass\n\ndef test_e():\n    check(2)\n")


_OPTIONS = ('NODE_OPTION(option, "option", TIME, "60s", RELOAD, 0, HOUR, "TIME",\n            "One. " "Of many")\n'
            'NODE_OPTION(other, "other", TIME, "0", RELOAD, 0, HOUR, "TIME",\n            "0: $OTHER seconds, else 2 s")\n')


def _case(row, accused=()):
    return Case({PAGE: _HEAD + row + "\n", "tests/fault/test_x.py": _TEST, "tests/unit/test_x.c": "START_TEST(it_ends)\n",
                 "tests/unit/CMakeLists.txt": "hvd_check_test(x LABEL unit test_x.c)\n", OPTIONS: _OPTIONS}, accused)


_LINE = {f"{PAGE}:5"}
CASES = [
    _case("| dies | 100 ms | `fault/test_x.py`: `test_a`, `test_c` |"),
    _case("| dies | `option` (60 s) + 5 s + 100 ms; 200 ms | `fault/test_x.py`: `test_b` |"),
    _case("| dies | – | `fault/test_x.py`: `test_c` |"),
    _case("| dies | – | `unit/test_x.c`; `unit/test_x.c`: `it_ends`; `fault/test_x.py`: `test_c`; the rest: unit.x |"),
    _case("| dies | 100 ms; `other` (2 s) + 100 ms | `fault/test_x.py`: `test_a`, `test_e` |"),
    _case("| dies | 100 ms; `other` (2 s) + 100 ms | `fault/test_x.py`: `test_a`, `test_c` |", _LINE),
    _case("| dies | `other` (60 s) + 100 ms | `fault/test_x.py`: `test_a` |", _LINE),
    _case("| dies | `option` (2 s) + 100 ms | `fault/test_x.py`: `test_a` |", _LINE),
    _case("| dies | `option` (60 s) | `fault/test_x.py`: `test_c` |", _LINE),
    _case("| dies | as below; 100 ms | `fault/test_x.py`: `test_a` |", _LINE),
    _case("| dies | 100 ms | `unit/test_x.c`: `it_ends` |", _LINE),
    _case("| dies | – | `unit/test_x.c`: `it_goes_on` |", _LINE),
    _case("| dies | – | `unit/test_y.c` |", _LINE),
    _case("| dies | – | `unit/test_y.c`; `fault/test_x.py`: `test_c` |", _LINE),
    _case("| dies | – | unit.y |", _LINE),
    _case("| dies | – | test_x |", _LINE),
    _case("| dies | 100 ms | `fault/test_x.py`: `test_a`, `test_d` |", _LINE),
    _case("| dies | 100 ms | `fault/test_y.py`: `test_a` |", _LINE),
    _case("| dies | 100 ms | `fault/test_x.py`: `test_c` |", _LINE),
    _case("| dies | 50 ms | `fault/test_x.py`: `test_a` |", _LINE),
    _case("| dies | 200 ms | `fault/test_x.py`: `test_b` |", _LINE),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
