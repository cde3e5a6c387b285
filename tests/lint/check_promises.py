# SPDX-License-Identifier: Apache-2.0
"""Every row of the table in docs/design/failure.md names existing tests, and these ask for the times that the row promises.

The last column has the form `fault/test_a.py`: `test_one`, `test_two`; `fault/test_b.py`: `test_three`, below tests/. The column
"within" has times like "100 ms" or "1 s + 100 ms", several with a semicolon between them; what stands in parentheses or
code does not count. Each time must be what a check_prompt asks for in one of the row's tests, or in a function of the
same file that the test calls; and no check_prompt there may ask for anything that no row with this test promises."""
import ast
import re

import lintlib
from lintlib import Case, offence

PAGE = "docs/design/failure.md"
_UNITS = {"ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?) (ms|s)\b")


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


def _promised(cell):
    """The times of the column "within", in ns."""
    plain = re.sub(r"\([^)]*\)|`[^`]*`", "", cell)
    sums = [sum(float(number) * _UNITS[unit] for number, unit in _TIME.findall(part)) for part in plain.split(";")]
    return {round(ns) for ns in sums if ns}


def _tests(cell):
    """(file, function) of each test in the column "test"."""
    path = ""
    for name in re.findall(r"`([^`]+)`", cell):
        if name.startswith("test_") and path:
            yield path, name
        else:
            path = f"tests/{name}"


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


def find(tree):
    if PAGE not in tree.files:
        return
    modules, promised, rows = {}, {}, []
    for line, row in _rows(tree):
        tests = list(_tests(row["test"]))
        if not tests:
            yield offence(PAGE, line, "this row names no test")
        for path, name in tests:
            if path not in modules and path in tree.files:
                modules[path] = Module(tree.read(path))
            if path not in modules or name not in modules[path].functions:
                yield offence(PAGE, line, f"there is no {name} in {path}")
        tests = [(path, name) for path, name in tests if path in modules and name in modules[path].functions]
        rows.append((line, _promised(row["within"]), tests))
        for test in tests:
            promised.setdefault(test, set()).update(rows[-1][1])
    for line, times, tests in rows:
        asked = {test: modules[test[0]].asked(test[1]) for test in tests}
        missing = times - set().union(*asked.values())
        if missing and tests:
            yield offence(PAGE, line, f"no test of this row asks for {_text(missing)}")
        for test in tests:
            if asked[test] - promised[test]:
                yield offence(PAGE, line, f"{test[1]} asks for {_text(asked[test] - promised[test])}, which no row promises")


_HEAD = "# Failure\n\n| event | within | test |\n|---|---|---|\n"
_TEST = ("LIMIT_NS = 100_000_000\n\ndef check(x):\n    check_prompt('x', x, LIMIT_NS)\n\n"
         "def test_a():\n    check(1)\n\ndef test_b(how):\n    check_prompt('x', 1, 5_100_000_000 if how else 2 * LIMIT_NS)\n\n"
         "def test_c():\n    pass\n")


def _case(row, accused=()):
    return Case({PAGE: _HEAD + row + "\n", "tests/fault/test_x.py": _TEST}, accused)


_LINE = {f"{PAGE}:5"}
CASES = [
    _case("| dies | 100 ms | `fault/test_x.py`: `test_a`, `test_c` |"),
    _case("| dies | `option` (60 s) + 5 s + 100 ms; 200 ms | `fault/test_x.py`: `test_b` |"),
    _case("| dies | – | `fault/test_x.py`: `test_c` |"),
    _case("| dies | – | test_x |", _LINE),
    _case("| dies | 100 ms | `fault/test_x.py`: `test_a`, `test_d` |", _LINE),
    _case("| dies | 100 ms | `fault/test_y.py`: `test_a` |", _LINE),
    _case("| dies | 100 ms | `fault/test_x.py`: `test_c` |", _LINE),
    _case("| dies | 50 ms | `fault/test_x.py`: `test_a` |", _LINE),
    _case("| dies | 200 ms | `fault/test_x.py`: `test_b` |", _LINE),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
