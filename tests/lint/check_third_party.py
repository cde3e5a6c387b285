# SPDX-License-Identifier: Apache-2.0
"""Headers from outside live in one or two files each. A header that is neither the C library's, the kernel's nor in the
table is new here: it needs a row, and a row is a decision."""
import fnmatch
import re

import includes
import lintlib
from lintlib import Case, offence

# header pattern: files that may include it. The first row that matches counts.
QUARANTINE = [
    ("zmq.h", ["admin/client.c", "tools/common/mesh_key.c", "daemon/gate/socket.c", "tests/unit/admin/test_*.c",
               "tests/unit/gate/test_mesh.c", "tests/unit/gate/test_socket.c", "tests/unit/tools/common/test_*.c",
               "tests/unit/tools/hvt_play.c"]),
    ("*.pb-c.h", ["proto/wire.c", "proto/wire_*.c"]),
    ("protobuf-c/*", ["proto/wire.c", "proto/wire_*.[ch]"]),
    ("cjson/cJSON.h", ["tools/hvdctl/json.c", "tools/hvdctl/doctor.c", "tests/harness/hvt_rank.c",
                       "tests/unit/engine/test_timeline.c",
                       "tests/unit/tools/hvdctl/hvt_program.h", "tests/unit/tools/hvdctl/test_*.c",
                       "tests/unit/tools/hvd-perf/test_program.c"]),
    ("yaml.h", ["tools/hvdrun/config.c"]),
    ("argp.h", ["daemon/node/command.c", "daemon/node/main.c", "daemon/engine/main.c"]),
    ("hwloc.h", ["tools/hvdctl/checks.c"]),
    ("openssl/*", ["base/seal.c"]),
    ("sodium.h", ["daemon/engine/net/handshake.c", "tools/hvdctl/peer_link.c", "tests/unit/tools/hvdctl/test_peer_link.c"]),
    ("systemd/sd-daemon.h", ["daemon/node/notify.c"]),
    ("systemd/sd-event.h", ["daemon/node/node.h", "base/discard.h", "daemon/node/gpu.h", "daemon/node/mps.h", "daemon/gpu/worker.h", "daemon/gpu/import.h", "daemon/gate/gate.h", "daemon/engine/event/event.h"]),
    ("uthash.h", ["client/ops/names.c", "daemon/node/job.h", "daemon/engine/order/tensor.c"]),
    ("ut*.h", ["base/discard.c", "client/*/*.[ch]", "daemon/*/*.[ch]", "tools/hvdrun/relay.c"]),
    ("mpi.h", ["bench/peers/mpi_bench.c"]),
    ("gloo/*", ["bench/peers/gloo_bench.cc"]),
    ("check.h", ["tests/*.[ch]"]),
    ("cuda.h", ["tests/gpu/probes/probe_cuda.h", "tests/unit/gpu/test_abi.c"]),
    ("nccl.h", ["tests/gpu/probes/probe_nccl.c", "tests/unit/gpu/test_abi.c"]),
    ("cuda_*16.h", ["tests/gpu/probes/kernels.cu"]),
    ("uc[pst]/*", ["daemon/engine/exec/net_ucx.c", "tests/unit/engine/fake_ucp.c", "tests/unit/engine/test_ucx.c"]),
    # Nothing may include these: the product declares what it uses of CUDA itself (gpu/).
    ("cuda*.h", []),
    ("nccl*.h", []),
    ("nvml.h", []),
]

# The C library, the kernel and the compiler.
_SYSTEM = re.compile(r"^(sys|linux|asm|net|netinet|arpa|bits)/[\w/-]+\.h$")
_SYSTEM_NAMES = set("""
    alloca arm_neon assert cpuid ctype dirent dlfcn elf emmintrin endian errno execinfo fcntl features fenv float fnmatch ftw
    getopt glob grp iconv ifaddrs immintrin inttypes iso646 langinfo libgen limits link locale malloc math mqueue netdb pmmintrin
    poll pthread pwd regex sched semaphore setjmp signal smmintrin spawn stdalign stdarg stdatomic stdbool stddef stdint
    stdio stdlib stdnoreturn string strings syscall sysexits syslog tgmath threads time tmmintrin uchar ucontext unistd
    utime wchar wctype wordexp x86intrin xmmintrin
""".split())


# The C++ library: a header without an ending, in a file that is C++.
_CPLUSPLUS = re.compile(r"^[a-z_]+$")


def _is_system(name, path):
    if path.endswith((".cc", ".cpp")) and _CPLUSPLUS.match(name):
        return True
    return bool(_SYSTEM.match(name)) or (name.endswith(".h") and name[:-2] in _SYSTEM_NAMES)


def _row(name):
    return next((files for pattern, files in QUARANTINE if fnmatch.fnmatchcase(name, pattern)), None)


def find(tree):
    for path in tree.named(*includes.ENDINGS):
        for line, name, _quoted in includes.of(tree, path):
            if includes.resolve(tree, path, name) is not None:
                continue
            files = _row(name)
            if files is None:
                if not _is_system(name, path):
                    yield offence(path, line, f"<{name}> is in no row of the third-party table and not the system's")
            elif not any(fnmatch.fnmatchcase(path, pattern) for pattern in files):
                yield offence(path, line, f"<{name}> may be included by {', '.join(files) or 'nothing yet'} only")


def _case(path, include, accused=False):
    return Case({path: f"#include {include}\n"}, {f"{path}:1"} if accused else ())


CASES = [
    _case("admin/client.c", "<zmq.h>"),
    _case("tools/hvdctl/main.c", "<zmq.h>", True),
    _case("client/attach/attach.c", "<zmq.h>", True),
    _case("daemon/gate/admin.c", "<zmq.h>", True),
    _case("daemon/gate/socket.c", "<zmq.h>"),
    _case("proto/wire_get.c", '"hvd.pb-c.h"'),
    _case("proto/packet.c", '"hvd.pb-c.h"', True),
    _case("daemon/node/admin.c", '"hvd.pb-c.h"', True),
    _case("bench/a.cc", "<vector>"),
    _case("tools/hvdrun/a.c", "<vector>", True),
    _case("tools/hvdrun/a.c", "<mpi.h>", True),
    _case("daemon/engine/exec/dispatch.c", "<cuda.h>", True),
    _case("daemon/engine/exec/dispatch.c", "<cuda_runtime.h>", True),
    _case("daemon/engine/exec/dispatch.c", "<nccl.h>", True),
    _case("daemon/engine/exec/dispatch.c", "<ucp/api/ucp.h>", True),
    _case("daemon/engine/exec/net_ucx.c", "<ucp/api/ucp.h>"),
    _case("gpu/nvml.c", "<cuda.h>", True),
    _case("tests/unit/gpu/test_abi.c", "<cuda.h>"),
    _case("tests/gpu/probes/probe_cuda.h", "<cuda.h>"),
    _case("tests/gpu/probes/probe1_timeline.c", "<cuda.h>", True),
    _case("tests/gpu/probes/probe_cuda.h", "<cuda_runtime.h>", True),
    _case("tests/gpu/probes/kernels.cu", "<cuda_fp16.h>"),
    _case("daemon/gpu/kernels/kernels.cu", "<cuda_fp16.h>", True),
    _case("tests/gpu/probes/probe_nccl.c", "<nccl.h>"),
    _case("daemon/node/notify.c", "<systemd/sd-daemon.h>"),
    _case("base/clock.c", "<systemd/sd-daemon.h>", True),
    _case("client/wait/wait.c", "<systemd/sd-event.h>", True),
    _case("daemon/node/command.c", "<argp.h>"),
    _case("client/api/open.c", "<argp.h>", True),
    _case("tools/hvdrun/config.c", "<yaml.h>"),
    _case("tools/hvdrun/options.c", "<yaml.h>", True),
    _case("daemon/node/admin.c", "<cjson/cJSON.h>", True),
    _case("base/clock.c", "<time.h>"),
    _case("base/clock.c", "<sys/eventfd.h>"),
    _case("base/clock.c", "<curl/curl.h>", True),
    _case("base/clock.c", '"surprise.h"', True),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
