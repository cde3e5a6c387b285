# SPDX-License-Identifier: Apache-2.0
"""Each variable of ours that a program or the library reads stands in a page for its users: those of client/ in hvd.h(3), those of
other C code in any man page, those of Python in python/README.md or a man page.

A variable is a string such as "HVD_ADDRESS". Names that are put together from parts are not seen."""
import re

import lintlib
from lintlib import Case, offence

_NAME = re.compile(r"""["']((?:HVD|HVDD|HVDRUN)_[A-Z][A-Z0-9_]*)["']""")
#: hvd.run() and its ranks tell each other by these; the names of statuses are no variables.
_INTERNAL = re.compile(r"HVD_RUN_(CALL|RESULT)$|HVD_ERR_")
_LIBRARY = "docs/man/hvd.h.3.scd"
_README = "python/README.md"
_C_FOLDERS = ("base/", "shm/", "gpu/", "proto/", "client/", "admin/", "daemon/", "tools/")


def find(tree):
    manual = [path for path in tree.files if path.startswith("docs/man/") and path.endswith(".scd")]
    for path in tree.named(".c", ".h", ".py"):
        if path.startswith("client/"):
            pages = [_LIBRARY]
        elif path.startswith(_C_FOLDERS):
            pages = manual
        elif path.startswith("python/"):
            pages = [*manual, _README]
        else:
            continue
        said = None
        for number, text in tree.lines(path):
            for name in _NAME.findall(text):
                if said is None:
                    said = "\n".join(tree.read(page) for page in pages if page in tree.files)
                if not _INTERNAL.match(name) and not re.search(rf"[*`]{name}[*`]", said):
                    yield offence(path, number, f"{name} stands in none of: {', '.join(pages)}")


_PAGES = {_LIBRARY: "*HVD_ADDRESS*\n\tWhere.\n", "docs/man/hvdrun.1.scd": "reads *HVD_SSH*, and HVD_PLAIN\n", _README: "| `HVD_LIBRARY` |\n"}
CASES = [
    Case({**_PAGES, "client/a.c": 'getenv("HVD_ADDRESS");\nreturn "HVD_ERR_UNKNOWN";\n'}),
    Case({**_PAGES, "client/a.c": '\ngetenv("HVD_SSH");\n'}, {"client/a.c:2"}),
    Case({**_PAGES, "tools/a.c": 'getenv("HVD_SSH");\ngetenv("HVD_LIBRARY");\n'}, {"tools/a.c:2"}),
    Case({**_PAGES, "daemon/a.h": '#define NAME "HVD_PLAIN"\n', "tests/a.c": 'setenv("HVD_ANY", "", 1);\n'}, {"daemon/a.h:1"}),
    Case({**_PAGES, "python/hvd/a.py": "environ['HVD_LIBRARY'], environ.get(\"HVD_SSH\"), environ['HVD_RUN_CALL']\n"}),
    Case({**_PAGES, "python/hvd/a.py": "environ['HVDD_OTHER']\n"}, {"python/hvd/a.py:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
