# SPDX-License-Identifier: Apache-2.0
"""shellcheck has nothing to say about any shell script: *.sh, and files that begin with a shell's #! line."""
import json
import re

import lintlib
from lintlib import Case, offence

_SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba|da)?sh\b")


def _is_script(tree, path):
    if path.endswith(".sh"):
        return True
    name = path.rsplit("/", 1)[-1]
    return "." not in name.lstrip(".") and bool(_SHEBANG.match(tree.read(path)[:64]))


def find(tree):
    program = lintlib.need("shellcheck")
    paths = [path for path in tree.files if _is_script(tree, path)]
    if not paths:
        return
    result = lintlib.run(program, "--format=json", "--external-sources", *paths, cwd=tree.root)
    for row in json.loads(result.stdout or "[]"):
        yield offence(row["file"], row["line"], f"SC{row['code']}: {row['message']}")


CASES = [
    Case({"a.sh": '#!/bin/sh\nls "$1"\n', "b": "#!/bin/bash\ntrue\n", "c": "rm -rf $1/$2\n"}),
    Case({"a.sh": "#!/bin/sh\nls $1\n"}, {"a.sh:2"}),
    Case({"x/run": "#!/usr/bin/env bash\nls $1\n"}, {"x/run:2"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
