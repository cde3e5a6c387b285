# SPDX-License-Identifier: Apache-2.0
"""libhvdclient.so exports hvd_* and nothing else. --library PATH, from the build."""
import pathlib
import re
import sys
import tempfile

import lintlib
from lintlib import Skip, offence

OURS = re.compile(r"^hvd_[a-z0-9_]+(@@?HVD_[0-9.]+)?$|^HVD_[0-9.]+$")  # the second: version nodes


def _exported(library):
    result = lintlib.run("nm", "--dynamic", "--defined-only", "--format=posix", library)
    if result.returncode != 0:
        sys.exit(f"nm {library}: {result.stderr}")
    return [line.split()[0] for line in result.stdout.splitlines() if line]


def accuse(library):
    names = _exported(library)
    if not any(name.startswith("hvd_") for name in names):
        yield offence(library, 0, "exports no hvd_* symbol: is this the right library?")
    for name in names:
        if not OURS.match(name):
            yield offence(library, 0, f"exports {name}")


def find(tree):
    lintlib.need("nm")
    library = tree.options.library
    if not library:
        raise Skip("no --library: libhvdclient is not part of this build")
    return accuse(library)


def _library_of(source, accused):
    """A self-test: a library made from `source` is accused or not."""
    def case():
        with tempfile.TemporaryDirectory(prefix="hvd-lint-") as folder:
            text, library = pathlib.Path(folder, "x.c"), pathlib.Path(folder, "x.so")
            text.write_text(source, encoding="utf-8")
            built = lintlib.run(lintlib.need("cc", "gcc", "clang"), "-shared", "-fPIC", "-nostdlib", "-o", library, text)
            if built.returncode != 0:
                return f"self-test: {built.stderr}"
            found = [o.text for o in accuse(library)]
        return None if bool(found) == accused else f"self-test: {source!r} gave {found}"
    return case


CASES = [
    _library_of("static int hvi_x(void) { return 1; } int (*hvd_p)(void) = hvi_x; int hvd_open(void) { return 0; }", False),
    _library_of("int hvd_open(void) { return 0; } int hvi_leak(void) { return 0; }", True),
    _library_of("int hvd_open(void) { return 0; } int shared_counter;", True),
    _library_of("static int nothing __attribute__((used));", True),
]

if __name__ == "__main__":
    lintlib.main(find, CASES, extra=["library"])
