# SPDX-License-Identifier: Apache-2.0
"""Each C file begins with its licence line, and each script has it within its first three lines."""
import lintlib
from lintlib import C_ENDINGS, Case, offence

C_LINE = "/* SPDX-License-Identifier: Apache-2.0"
LINE = "SPDX-License-Identifier: Apache-2.0"


def find(tree):
    for path in tree.named(*C_ENDINGS):
        if not tree.read(path).startswith(C_LINE):
            yield offence(path, 1, f"the first line is not \"{C_LINE}\"")
    for path in tree.named(".sh", ".py"):
        text = tree.read(path)
        if text and not any(LINE in line for line in text.splitlines()[:3]):
            yield offence(path, 1, f"no \"{LINE}\" in the first three lines")


CASES = [
    Case({"a.c": C_LINE + " */\n", "a.h": C_LINE + "\n * x */\n", "a.sh": f"#!/bin/sh\n# {LINE}\n", "a.py": ""}),
    Case({"a.c": "\n" + C_LINE + " */\n"}, {"a.c:1"}),
    Case({"a.h": "int x;\n"}, {"a.h:1"}),
    Case({"a.inc": ""}, {"a.inc:1"}),
    Case({"a.sh": "#!/bin/sh\n"}, {"a.sh:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
