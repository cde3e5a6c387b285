# SPDX-License-Identifier: Apache-2.0
"""Includes point down only: base <- reduce <- shm; base <- proto, gpu; shm, proto <- client | daemon/node | daemon/engine | daemon/gpu | tools;
proto, hvd.h <- admin; hvd_admin.h <- tools/hvdctl, tools/hvdrun;
gpu <- client/device, daemon/gpu, tools/hvdctl; in the engine order <- exec, stats, memory, net <- slots, mesh, device <- sessions <- watch <- the loop; in the client attach <- link <- device <- memory
<- ops <- slots <- complete <- session <- submit <- wait <- api; in the tools common <- one folder for each program.

The table is docs/design/house.md. tests/ may see everything."""
import includes
import lintlib
from lintlib import Case, offence

HVD_H = "client/include/hvd/hvd.h"
ADMIN_H = "admin/include/hvd/hvd_admin.h"

# folder: what its files may include besides the folder itself. A folder that is not here may include nothing.
MAY_INCLUDE = {
    "base": (),
    "reduce": ("base",),
    "shm": ("base", "reduce"),
    "gpu": ("base",),
    "proto": ("base",),
    "client/include": (),
    "client": ("base", "client/include"),
    "client/attach": ("base", "proto", "shm/abi.h", "client/include", "client/error.h"),
    "client/link": ("base", "shm", "proto", "client/include", "client/error.h", "client/attach"),
    "client/device": ("base", "shm", "proto", "gpu", "client/include", "client/error.h", "client/link"),
    "client/memory": ("base", "shm", "proto", "client/include", "client/error.h", "client/link", "client/device"),
    "client/ops": ("base", "shm", "client/include", "client/error.h", "client/device", "client/memory"),
    "client/slots": ("base", "reduce", "shm", "client/include", "client/error.h", "client/step.h", "client/link", "client/memory",
                     "client/ops"),
    "client/complete": ("base", "shm", "client/include", "client/error.h", "client/link", "client/ops", "client/slots"),
    "client/session": ("base", "client/include", "client/error.h", "client/link", "client/memory", "client/ops", "client/slots",
                       "client/complete"),
    "client/submit": ("base", "shm", "client/include", "client/error.h", "client/link", "client/device", "client/memory", "client/ops",
                      "client/slots", "client/complete", "client/session"),
    "client/wait": ("base", "shm", "client/include", "client/error.h", "client/link", "client/device", "client/memory", "client/ops",
                    "client/slots", "client/complete", "client/session", "client/submit"),
    "client/api": ("base", "shm", "proto", "client"),
    "admin/include": (HVD_H,),
    "admin": ("base", "proto", "admin/include", HVD_H),
    "daemon/node": ("base", "shm", "proto"),
    "daemon/gate": ("base", "proto"),
    "daemon/engine": ("base", "reduce", "shm", "proto", "daemon/engine"),
    "daemon/engine/order": ("base", "reduce", "shm/abi.h", "shm/agreement.h", "proto/mesh.h"),
    "daemon/engine/mesh": ("base", "proto/mesh.h", "daemon/engine/order"),
    "daemon/engine/exec": ("base", "reduce", "shm", "daemon/engine/order"),
    "daemon/engine/event": (),
    "daemon/engine/net": ("base", "daemon/engine/event"),
    "daemon/engine/mesh": ("base", "proto", "daemon/engine/order", "daemon/engine/net", "daemon/engine/event"),
    "daemon/engine/device": ("base", "shm", "proto", "daemon/engine/event"),
    "daemon/engine/memory": ("base", "shm", "proto/wire.h"),
    "daemon/engine/stats": ("base", "shm/slots.h", "proto/wire.h", "daemon/engine/order"),
    "daemon/engine/slots": ("base", "reduce", "shm", "daemon/engine/exec", "daemon/engine/order",
                            "daemon/engine/memory", "daemon/engine/stats", "daemon/engine/event"),
    "daemon/engine/sessions": ("base", "shm", "proto", "daemon/engine/device", "daemon/engine/mesh", "daemon/engine/slots", "daemon/engine/exec", "daemon/engine/order",
                               "daemon/engine/memory", "daemon/engine/stats", "daemon/engine/event"),
    "daemon/engine/watch": ("base", "shm", "proto", "daemon/engine/sessions", "daemon/engine/mesh", "daemon/engine/slots",
                            "daemon/engine/exec", "daemon/engine/order", "daemon/engine/stats", "daemon/engine/event"),
    "daemon/gpu": ("base", "shm", "proto", "gpu", "daemon/gpu/kernels"),
    "daemon/gpu/kernels": ("base",),
    "tools/common": ("base", "proto"),
    "tools/hvdctl": ("base", "proto", "gpu", "tools/common", ADMIN_H),
    "tools/hvdrun": ("base", "proto", "tools/common", ADMIN_H),
    "tools/hvd-perf": ("base", "tools/common/text.h", "client/include"),
    "python/native": (HVD_H,),
    "examples": (HVD_H, ADMIN_H),
    "bench": (HVD_H,),
    "bench/device": ("base", "gpu", "daemon/gpu", HVD_H),
}

# Of what they may include, these may not: order/ has no clock but an argument, and learns of processes from nobody.
MAY_NOT = {"daemon/engine/order": ("base/clock.h", "base/fate.h", "base/relax.h")}


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
            elif target in MAY_NOT.get(folder, ()):
                yield offence(path, line, f"{folder} may not include {target}")


# The client's rooms, lowest first.
_ROOMS = ("attach", "link", "device", "memory", "ops", "slots", "complete", "session", "submit", "wait", "api")

_BASE = {"base/a.h": "", "shm/s.h": "", "proto/p.h": "", "client/c.h": "", HVD_H: "", "reduce/r.h": "",
         "client/error.h": "", "client/step.h": "", **{f"client/{room}/{room}.h": "" for room in _ROOMS},
         "daemon/node/n.h": "", "daemon/engine/e.h": "", "daemon/engine/order/o.h": "", "daemon/engine/exec/x.h": "",
         "daemon/engine/slots/l.h": "", "daemon/engine/net/n.h": "", "daemon/engine/mesh/m.h": "", "daemon/engine/sessions/s.h": "", "daemon/engine/watch/w.h": "",
         "shm/abi.h": "", "base/clock.h": "", "daemon/gpu/g.h": "", "daemon/gpu/kernels/k.h": "", "gpu/c.h": "", "daemon/engine/device/d.h": "", "tests/t.h": "",
         "tools/common/t.h": "", "tools/hvdctl/ctl.h": "", ADMIN_H: "", "admin/a.h": ""}


def _case(path, include, accused=False):
    return Case({**_BASE, path: f"/* one */\n#include {include}\n"}, {f"{path}:2"} if accused else ())


CASES = [
    _case("daemon/gpu/x.c", '"daemon/gpu/kernels/k.h"'),
    _case("daemon/gpu/kernels/x.cu", '"daemon/gpu/g.h"', True),
    _case("shm/x.c", '"base/a.h"'),
    _case("shm/x.c", '"s.h"'),
    _case("client/x.c", '"hvd/hvd.h"'),
    _case("tools/hvd-perf/x.c", '<hvd/hvd.h>'),
    _case("tools/hvdctl/x.c", '"tools/common/t.h"'),
    _case("client/x.c", '"proto/p.h"', True),
    _case("client/link/x.c", '"proto/p.h"'),
    _case("client/slots/x.c", '"reduce/r.h"'),
    _case("client/slots/x.c", '"client/step.h"'),
    _case("client/memory/x.c", '"client/step.h"', True),
    _case("client/memory/x.c", '"client/c.h"', True),
    _case("client/submit/x.c", '"reduce/r.h"', True),
    *[_case(f"client/{room}/x.c", '"client/error.h"') for room in _ROOMS],
    *[_case(f"client/{low}/x.c", f'"client/{high}/{high}.h"', True)
      for i, low in enumerate(_ROOMS) for high in _ROOMS[i + 1:]],
    *[_case(f"client/{high}/x.c", f'"client/{low}/{low}.h"') for low, high in zip(_ROOMS, _ROOMS[1:])],
    _case("examples/x.c", '<hvd/hvd.h>'),
    _case("tests/unit/x.c", '"daemon/engine/e.h"'),
    _case("base/x.c", '"shm/s.h"', True),
    _case("shm/x.c", '"reduce/r.h"'),
    _case("reduce/x.c", '"shm/s.h"', True),
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
    _case("daemon/engine/x.c", '"daemon/engine/order/o.h"'),
    _case("daemon/engine/exec/y.c", '"daemon/engine/order/o.h"'),
    _case("daemon/engine/order/y.c", '"shm/abi.h"'),
    _case("daemon/engine/order/y.c", '"base/a.h"'),
    _case("daemon/engine/order/y.c", '"base/clock.h"', True),
    _case("daemon/engine/order/y.c", '"shm/s.h"', True),
    _case("daemon/engine/order/y.c", '"daemon/engine/exec/x.h"', True),
    _case("daemon/engine/order/y.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/exec/y.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/slots/y.c", '"daemon/engine/exec/x.h"'),
    _case("daemon/engine/slots/y.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/slots/y.c", '"daemon/engine/sessions/s.h"', True),
    _case("daemon/engine/sessions/y.c", '"daemon/engine/slots/l.h"'),
    _case("daemon/engine/sessions/y.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/sessions/y.c", '"daemon/engine/watch/w.h"', True),
    _case("daemon/engine/watch/y.c", '"daemon/engine/sessions/s.h"'),
    _case("daemon/engine/watch/y.c", '"daemon/engine/e.h"', True),
    _case("daemon/engine/memory/y.c", '"daemon/engine/order/o.h"', True),
    _case("daemon/engine/mesh/y.c", '"daemon/engine/net/n.h"'),
    _case("daemon/engine/mesh/y.c", '"daemon/engine/exec/x.h"', True),
    _case("daemon/engine/net/y.c", '"daemon/engine/order/o.h"', True),
    _case("daemon/engine/net/y.c", '"daemon/engine/mesh/m.h"', True),
    _case("daemon/engine/sessions/y.c", '"daemon/engine/mesh/m.h"'),
    _case("daemon/engine/stats/y.c", '"daemon/engine/exec/x.h"', True),
    _case("daemon/gpu/x.h", '"daemon/engine/e.h"', True),
    _case("daemon/gpu/x.c", '"gpu/c.h"'),
    _case("client/device/x.c", '"gpu/c.h"'),
    _case("tools/hvdctl/x.c", '"gpu/c.h"'),
    _case("client/memory/x.c", '"gpu/c.h"', True),
    _case("daemon/node/x.c", '"gpu/c.h"', True),
    _case("daemon/engine/device/x.c", '"gpu/c.h"', True),
    _case("daemon/engine/sessions/y.c", '"daemon/engine/device/d.h"'),
    _case("daemon/engine/exec/y.c", '"daemon/engine/device/d.h"', True),
    _case("gpu/x.c", '"shm/s.h"', True),
    _case("tools/x.c", '"base/a.h"', True),
    _case("tools/hvdrun/x.c", '"shm/s.h"', True),
    _case("tools/hvdrun/x.c", '"client/c.h"', True),
    _case("tools/hvdrun/x.c", '<hvd/hvd.h>', True),
    _case("tools/hvdrun/x.c", '"tools/hvdctl/ctl.h"', True),
    _case("admin/x.c", '"proto/p.h"'),
    _case("admin/x.c", '<hvd/hvd.h>'),
    _case("admin/x.c", '"client/c.h"', True),
    _case("admin/x.c", '"tools/common/t.h"', True),
    _case("admin/include/hvd/x.h", '<hvd/hvd.h>'),
    _case("admin/include/hvd/x.h", '"proto/p.h"', True),
    _case("client/api/x.c", '<hvd/hvd_admin.h>', True),
    _case("daemon/gate/x.c", '"admin/a.h"', True),
    _case("tools/hvdctl/x.c", '<hvd/hvd_admin.h>'),
    _case("tools/hvdctl/x.c", '"admin/a.h"', True),
    _case("tools/hvdrun/x.c", '"admin/a.h"', True),
    _case("examples/x.c", '<hvd/hvd_admin.h>'),
    _case("tools/hvd-perf/x.c", '"tools/common/t.h"', True),
    _case("tools/common/x.c", '"tools/hvdctl/ctl.h"', True),
    _case("examples/d/x.c", '"base/a.h"', True),
    _case("bench/x.c", '"client/c.h"', True),
    _case("client/include/hvd/x.h", '"base/a.h"', True),
    _case("base/x.c", '"tests/t.h"', True),
    _case("newfolder/x.c", '"base/a.h"', True),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
