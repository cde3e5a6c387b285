# SPDX-License-Identifier: Apache-2.0
"""libhvdclient.so exports hvd_* and nothing else, libhvdadmin.so hvd_admin_*. --library PATH, from the build."""
import pathlib
import re
import sys
import tempfile

import lintlib
from lintlib import Skip, offence

# The second of each: version nodes.
CLIENT = re.compile(r"^hvd_(?!admin_)[a-z0-9_]+(@@?HVD_[0-9.]+)?$|^HVD_[0-9.]+$")
ADMIN = re.compile(r"^hvd_admin_[a-z0-9_]+(@@?HVD_ADMIN_[0-9.]+)?$|^HVD_ADMIN_[0-9.]+$")


def _exported(library):
    result = lintlib.run("nm", "--dynamic", "--defined-only", "--format=posix", library)
    if result.returncode != 0:
        sys.exit(f"nm {library}: {result.stderr}")
    return [line.split()[0] for line in result.stdout.splitlines() if line]


def accuse(library):
    ours = ADMIN if "hvdadmin" in pathlib.Path(library).name else CLIENT
    names = _exported(library)
    if not any(name.startswith("hvd_") for name in names):
        yield offence(library, 0, "exports no hvd_* symbol: is this the right library?")
    for name in names:
        if not ours.match(name):
            yield offence(library, 0, f"exports {name}")


def find(tree):
    lintlib.need("nm")
    library = tree.options.library
    if not library:
        raise Skip("no --library: the library is not part of this build")
    return accuse(library)


def _library_of(source, accused, name="x.so"):
    """A self-test: a library made from `source` is accused or not."""
    def case():
        with tempfile.TemporaryDirectory(prefix="hvd-lint-") as folder:
            text, library = pathlib.Path(folder, "x.c"), pathlib.Path(folder, name)
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
    _library_of("int hvd_admin_open(void) { return 0; }", False, "libhvdadmin.so"),
    _library_of("int hvd_admin_open(void) { return 0; } int hvd_open(void) { return 0; }", True, "libhvdadmin.so"),
    _library_of("int hvd_open(void) { return 0; } int hvd_admin_open(void) { return 0; }", True),
]

if __name__ == "__main__":
    lintlib.main(find, CASES, extra=["library"])
