# SPDX-License-Identifier: Apache-2.0
"""clang-format 14 has nothing to change in any .c, .h, .inc or .cu. Other versions decide differently, so they skip."""
import re
import shutil

import lintlib
from lintlib import C_ENDINGS, Case, Skip, offence

VERSION = 14


def _program():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            match = re.search(r"version (\d+)", lintlib.run(name, "--version").stdout)
            if match and int(match.group(1)) == VERSION:
                return name
    raise Skip(f"clang-format {VERSION} is not installed")


def find(tree):
    program = _program()
    paths = tree.named(*C_ENDINGS)
    if not paths:
        return
    result = lintlib.run(program, "--dry-run", "-Werror", "--style=file", *paths, cwd=tree.root)
    lines = set()
    for match in re.finditer(r"^(\S+?):(\d+):\d+: error: code should be clang-formatted", result.stderr, re.M):
        lines.add((match.group(1), int(match.group(2))))
    if result.returncode != 0 and not lines:
        yield offence(paths[0], 0, result.stderr.strip() or "clang-format failed")
    first = {}
    for path, line in sorted(lines):
        first.setdefault(path, (line, []))[1].append(line)
    for path, (line, all_lines) in first.items():
        yield offence(path, line, f"not clang-format {VERSION} clean ({len(all_lines)} places): {program} -i {path}")


_STYLE = "BasedOnStyle: LLVM\nIndentWidth: 4\n"
CASES = [
    Case({".clang-format": _STYLE, "a.c": "int f(int x);\n"}),
    Case({".clang-format": _STYLE, "a.c": "int  f(int x);\nint  g(int x);\n"}, {"a.c:1"}),
    Case({".clang-format": _STYLE, "b/a.h": "int x;\nint  y;\n", "b/b.h": "int x;\n"}, {"b/a.h:2"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
