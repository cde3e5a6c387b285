# SPDX-License-Identifier: Apache-2.0
"""Includes point down only: base <- shm, proto <- client | daemon/node | daemon/engine | daemon/gpu | tools.

The table is docs/design/house.md. tests/ may see everything."""
import includes
import lintlib
from lintlib import Case, offence

HVD_H = "client/include/hvd/hvd.h"

# folder: what its files may include besides the folder itself. A folder that is not here may include nothing.
MAY_INCLUDE = {
    "base": (),
    "reduce": ("base",),
    "shm": ("base",),
    "proto": ("base",),
    "client/include": (),
    "client": ("base", "reduce", "shm", "proto", "client/include"),
    "daemon/node": ("base", "shm", "proto"),
    "daemon/engine": ("base", "reduce", "shm", "proto"),
    "daemon/gpu": ("base", "shm", "proto"),
    "tools": ("base", "proto", "client/include"),
    "python/native": (HVD_H,),
    "examples": (HVD_H,),
    "bench": (HVD_H,),
}


def _inside(path, folder):
    return path == folder or path.startswith(folder + "/")


def _folder_of(path):
    """The longest row that holds this path."""
    return max((f for f in MAY_INCLUDE if _inside(path, f)), key=len, default=None)


def _is_own(target, folder):
    return _folder_of(target) == folder


def find(tree):
    for path in tree.named(*includes.ENDINGS):
        if _inside(path, "tests"):
            continue
        folder = _folder_of(path)
        for line, name, _quoted in includes.of(tree, path):
            if ".." in name.split("/"):
                yield offence(path, line, f"includes {name}: no '..' in an include")
            target = includes.resolve(tree, path, name)
            if target is None:
                continue
            if folder is None:
                yield offence(path, line, f"this folder has no row in {__file__.rsplit('/', 1)[-1]}")
            elif not _is_own(target, folder) and not any(_inside(target, f) for f in MAY_INCLUDE[folder]):
                allowed = ", ".join(MAY_INCLUDE[folder]) or "nothing"
                yield offence(path, line, f"{folder} may include {allowed} and itself, not {target}")


_BASE = {"base/a.h": "", "shm/s.h": "", "proto/p.h": "", "client/c.h": "", HVD_H: "",
         "daemon/node/n.h": "", "daemon/engine/e.h": "", "daemon/gpu/g.h": "", "tests/t.h": ""}


def _case(path, include, accused=False):
    return Case({**_BASE, path: f"/* one */\n#include {include}\n"}, {f"{path}:2"} if accused else ())


CASES = [
    _case("shm/x.c", '"base/a.h"'),
    _case("shm/x.c", '"s.h"'),
    _case("client/x.c", '"proto/p.h"'),
    _case("client/x.c", '"hvd/hvd.h"'),
    _case("tools/x.c", '<hvd/hvd.h>'),
    _case("examples/x.c", '<hvd/hvd.h>'),
    _case("tests/unit/x.c", '"daemon/engine/e.h"'),
    _case("base/x.c", '"shm/s.h"', True),
    _case("base/x.c", "<shm/s.h>", True),
    _case("proto/x.c", '"shm/s.h"', True),
    _case("shm/x.c", '"proto/p.h"', True),
    _case("client/x.c", '"daemon/node/n.h"', True),
    _case("client/x.c", '"../base/a.h"', True),
    _case("daemon/node/x.c", '"client/c.h"', True),
    _case("daemon/node/x.c", '"hvd/hvd.h"', True),
    _case("daemon/node/x.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/x.c", '"daemon/node/n.h"', True),
    _case("daemon/engine/x.c", '"daemon/gpu/g.h"', True),
    _case("daemon/gpu/x.h", '"daemon/engine/e.h"', True),
    _case("tools/x.c", '"shm/s.h"', True),
    _case("tools/x.c", '"client/c.h"', True),
    _case("examples/d/x.c", '"base/a.h"', True),
    _case("bench/x.c", '"client/c.h"', True),
    _case("client/include/hvd/x.h", '"base/a.h"', True),
    _case("base/x.c", '"tests/t.h"', True),
    _case("newfolder/x.c", '"base/a.h"', True),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
