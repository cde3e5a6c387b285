# SPDX-License-Identifier: Apache-2.0
"""What is left to do has an issue: a marker in the sources names its number, as in "TO" "DO(#12): ..."."""
import re

import lintlib
from lintlib import Case, offence

_MARKER = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
_ISSUE = re.compile(r"#\d+")
ENDINGS = lintlib.C_ENDINGS + (".def", ".proto", ".py", ".sh", ".cmake", ".in", ".service", ".socket", ".scd",
                               "CMakeLists.txt")


def find(tree):
    for path in tree.named(*ENDINGS):
        for number, text in tree.lines(path):
            match = _MARKER.search(text)
            if match and not _ISSUE.search(text):
                yield offence(path, number, f"{match.group(1)} without an issue (#123)")


_TODO, _FIXME = "TO" "DO", "FIX" "ME"
CASES = [
    Case({"a.c": f"/* {_TODO}(#12): later */\n"}),
    Case({"a.c": "mktemp -d x-XXXXXX; HVD_XXX\n"}),
    Case({"a.c": f"int x;\n/* {_TODO}: later */\n"}, {"a.c:2"}),
    Case({"b/CMakeLists.txt": f"# {_FIXME} later\n"}, {"b/CMakeLists.txt:1"}),
    Case({"a.py": "# X" "XX\n"}, {"a.py:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
