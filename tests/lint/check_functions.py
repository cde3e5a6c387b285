# SPDX-License-Identifier: Apache-2.0
"""No function and no macro is longer than 80 lines, signature included. Functions over 40 are listed, not accused.

The repository's clang-format puts the braces of a function, and only those, alone into column 0 (check_format.py keeps
it so); finding functions by them is exact and needs no parser that trips over macros."""
import statistics

import lintlib
from lintlib import C_ENDINGS, Case, offence

WALL = 80
LONG = 40


def _signature(lines, brace):
    """The index of the first line of the signature that ends above the brace."""
    first = brace
    while first > 0:
        above = lines[first - 1].rstrip()
        if not above or above[0] in "#}/" or above.endswith((";", "*/", "\\")):
            break
        first -= 1
    return first


def functions(lines):
    """(first line, last line) of each function, counted from 1."""
    for at, text in enumerate(lines):
        if text.rstrip() == "{":
            end = next((i for i in range(at, len(lines)) if lines[i].startswith("}")), len(lines) - 1)
            yield _signature(lines, at) + 1, end + 1


def macros(lines):
    at = 0
    while at < len(lines):
        first = at
        if lines[at].lstrip().startswith("#"):
            while at + 1 < len(lines) and lines[at].endswith("\\"):
                at += 1
            yield first + 1, at + 1
        at += 1


def find(tree):
    lengths = []
    for path in tree.named(*C_ENDINGS):
        lines = tree.read(path).splitlines()
        spans = [("function", span) for span in functions(lines)] + [("macro", span) for span in macros(lines)]
        for what, (first, last) in spans:
            length = last - first + 1
            if what == "function":
                lengths.append(length)
            if length > WALL:
                yield offence(path, first, f"a {what} of {length} lines, at most {WALL}")
            elif length > LONG and what == "function":
                tree.note(f"{path}:{first}: a function of {length} lines")
    if lengths:
        tree.note(f"{len(lengths)} functions, median {statistics.median(lengths):.0f} lines, longest {max(lengths)}")


def _function(lines, head="int f(int x)"):
    body = lines - head.count("\n") - 4
    return head + "\n{\n" + "    x++;\n" * body + "    return x;\n}\n"


CASES = [
    Case({"a.c": "int g(void);\n" + _function(80)}),
    Case({"a.c": "int g(void);\n" + _function(81)}, {"a.c:2"}),
    Case({"a.c": "/* f */\n" + _function(81, "static int f(int x,\n             int y)")}, {"a.c:2"}),
    Case({"a.h": _function(20) + "\nstatic inline " + _function(100)}, {"a.h:22"}),
    Case({"a.inc": "MACRO(a)\n\n" + _function(100)}, {"a.inc:3"}),
    Case({"a.h": "#define M(x) \\\n" + "    x; \\\n" * 80 + "    x\n"}, {"a.h:1"}),
    Case({"a.c": "static const int a[] = {\n" + "    1,\n" * 200 + "};\n" + _function(30)}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
