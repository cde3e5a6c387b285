# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone, twice in a row (its guard works), without a warning: under gcc, or clang where there is no gcc. hvd.h and
hvd_admin.h compile under both, also as strict C11 and as C++11."""
import concurrent.futures
import os
import re
import shutil

import lintlib
from lintlib import Case, Skip, offence

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes", "-Werror"]
PACKAGES = ["libprotobuf-c", "libsystemd", "libcjson", "hwloc", "libzmq", "check"]
PUBLIC = ("client/include/", "admin/include/")


def _packages():
    if not shutil.which("pkg-config"):
        return []
    flags = []
    for package in PACKAGES:
        flags += lintlib.run("pkg-config", "--cflags", package).stdout.split()
    return flags


def _commands(path):
    """(label, command) of each way this header must compile."""
    plain = ["-std=gnu17", "-D_GNU_SOURCE", '-DHVD_VERSION_TEXT="0"', "-Wno-unused-function"]
    ways = [("gcc", ["gcc", "-x", "c"] + plain), ("clang", ["clang", "-x", "c"] + plain)]
    if not path.startswith(PUBLIC):
        ways = [way for way in ways if shutil.which(way[0])][:1]
    else:
        ways += [("gcc -std=c11", ["gcc", "-x", "c", "-std=c11", "-pedantic-errors"]),
                 ("clang -std=c11", ["clang", "-x", "c", "-std=c11", "-pedantic-errors"]),
                 ("g++", ["g++", "-x", "c++", "-std=c++11", "-pedantic-errors"]),
                 ("clang++", ["clang++", "-x", "c++", "-std=c++11", "-pedantic-errors"])]
    return [(label, command) for label, command in ways if shutil.which(command[0])]


def _compile(tree, path, label, command, packages):
    name = path.split("/include/", 1)[1] if path.startswith(PUBLIC) else path
    warnings = [w for w in WARNINGS if not ("++" in command[0] and w == "-Wstrict-prototypes")]
    if path.startswith(PUBLIC):
        places = [f"-I{folder}" for folder in PUBLIC]  # a user has nothing else
    else:
        places = ["-I.", *(f"-I{folder}" for folder in PUBLIC), "-Itests/harness"] + packages
    result = lintlib.run(*command, *warnings, "-fsyntax-only", *places, "-",
                         input=f'#include "{name}"\n#include "{name}"\n', cwd=tree.root,
                         env={**os.environ, "LC_ALL": "C"})
    if result.returncode == 0:
        return None
    lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
    match = re.match(r"(?:\./)?" + re.escape(path) + r":(\d+)", lines[0]) if lines else None
    return offence(path, int(match.group(1)) if match else 1, f"{label}: {lines[0] if lines else 'failed'}")


def find(tree):
    if not shutil.which("gcc") and not shutil.which("clang"):
        raise Skip("neither gcc nor clang is installed")
    packages = _packages()
    jobs = [(path, label, command) for path in tree.named(".h") for label, command in _commands(path)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda job: _compile(tree, *job, packages), jobs)
        yield from {(o.path, o.line): o for o in results if o}.values()


def _guarded(text):
    return f"#ifndef G\n#define G\n{text}\n#endif\n"


CASES = [
    Case({"base/good.h": _guarded("#include <stdint.h>\nuint32_t f(void);")}),
    Case({"base/needs.h": _guarded("uint32_t f(void);")}, {"base/needs.h:3"}),
    Case({"base/unguarded.h": "struct s {\n    int x;\n};\n"}, {"base/unguarded.h:1"}),
    Case({"base/warns.h": _guarded("static inline int f(long x)\n{\n    return x;\n}")}, {"base/warns.h:5"}),
    Case({"client/include/hvd/hvd.h": _guarded("int f(int new);")},
         {"client/include/hvd/hvd.h:3"} if shutil.which("g++") else ()),
    Case({"client/include/hvd/hvd.h": _guarded("#include <stdint.h>\ntypedef int64_t f;\nint a[0];")},
         {"client/include/hvd/hvd.h:5"}),
    Case({"base/a.h": _guarded("int f(void);"), "client/include/hvd/hvd.h": _guarded('#include "base/a.h"')},
         {"client/include/hvd/hvd.h:3"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
