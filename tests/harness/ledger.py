# SPDX-License-Identifier: Apache-2.0
"""tests/skips.txt: which tests may be skipped, under which condition, and why.

Tests are named by their file below tests/ and their function, "fault/test_foreign.py::test_x", also in C; what ends with exit
status 77 is named as in ctest. The conditions are found out here and not asked of a test, so that a test that is wrong about
its machine fails. What was skipped and what was late is appended to the file that HVT_EVENTS names (run-ctest reads it)."""
from __future__ import annotations

import fnmatch
import functools
import glob
import importlib.metadata
import os
import pathlib
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

TESTS = pathlib.Path(__file__).resolve().parents[1]


def _cached(name: str) -> str:
    from hvt.build import cache_entry  # pylint: disable=import-outside-toplevel  # which looks for a build
    return cache_entry(name)


def _first_number(path: str) -> int:
    try:
        return int(pathlib.Path(path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _meminfo(row: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(row)) << 10


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def _is_openable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _may_be_kept_out() -> bool:
    """Whether the kernel may refuse process_vm_readv: a filter of system calls, or Yama."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    scope = _first_number("/proc/sys/kernel/yama/ptrace_scope")
    return "Seccomp:\t2" in status or scope == 3 or (scope > 0 and os.geteuid() != 0)


def _may_not_handle_faults() -> bool:
    """Whether the kernel may refuse a userfaultfd for its own faults."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return "Seccomp:\t2" in status or (os.geteuid() != 0 and not _first_number("/proc/sys/vm/unprivileged_userfaultfd"))


def _keras_2() -> bool:
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        return True
    return any(distribution.version.startswith("2.15") for distribution in importlib.metadata.distributions()
               if (distribution.metadata["Name"] or "").startswith("tensorflow"))


def _may_limit_memory() -> bool:
    """Whether root can make a memory cgroup. In version 2, a cgroup that has processes itself, as a container's has, may
    have none with a limit below it; the root of all cgroups, which has no type, may."""
    new = pathlib.Path("/sys/fs/cgroup")
    old = new / "memory"
    if os.geteuid() != 0:
        return False
    if os.access(old, os.W_OK) and (old / "memory.limit_in_bytes").exists():
        return True
    return os.access(new, os.W_OK) and (new / "memory.stat").exists() and (
        not (new / "cgroup.type").exists() or "memory" in (new / "cgroup.subtree_control").read_text().split())


def _may_make_cpusets() -> bool:
    """Whether root can make a cpuset of version 1, of one of two cores."""
    old = pathlib.Path("/sys/fs/cgroup/cpuset")
    return os.geteuid() == 0 and os.access(old, os.W_OK) and (old / "cpuset.cpus").exists() and {0, 1} <= os.sched_getaffinity(0)


def _cuda() -> bool:
    return all(_cached(name) and not _cached(name).endswith("NOTFOUND") for name in ("HVD_NVCC", "HVD_CUDA_INCLUDE"))


def _is_daemon_here() -> bool:
    places = ["/run/hvdd", f"/tmp/hvdd-{os.geteuid()}"]
    return any(pathlib.Path(place, "attach.sock").exists() for place in places)


def _has_no_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as at:
            at.bind(("::1", 0))
    except OSError:
        return True
    return False


#: How the conditions of tests that .ci/run leaves out begin (run-ctest --leave-out). They allow no skip.
LEFT_OUT = "ci-"
#: What a line of tests/skips.txt may name, and when it holds.
CONDITIONS: dict[str, Callable[[], bool]] = {
    "no-soak": lambda: "--soak" not in sys.argv,
    "no-huge": lambda: os.environ.get("HVT_HUGE") != "1",
    "service": lambda: bool(os.environ.get("HVT_SERVICE")),
    "service-hvdd": lambda: os.environ.get("HVT_SERVICE") == "hvdd",
    "asan": lambda: "address" in _cached("HVD_SANITIZE"),
    "tsan": lambda: "thread" in _cached("HVD_SANITIZE"),
    "arm": lambda: bool(_cached("HVD_ARM_ROOT")),
    "no-ucx": lambda: not _cached("HVD_UCX_HEADER"),
    "not-root": lambda: os.geteuid() != 0,
    "not-x86-64": lambda: platform.machine() != "x86_64",
    "driver": lambda: _succeeds("sh", "-c", "PATH=$PATH:/sbin; ldconfig -p | grep -q libcuda[.]so[.]1"),
    "no-gpu": lambda: not glob.glob("/dev/nvidia[0-9]*"),
    "one-gpu": lambda: len(glob.glob("/dev/nvidia[0-9]*")) == 1,
    "real-gpu": lambda: os.environ.get("HVT_GPU") == "real",
    "cuda": lambda: os.path.exists("/usr/local/cuda/bin/nvcc"),
    "no-cuda": lambda: not _cuda(),
    "no-nccl": lambda: not os.path.exists(f"{_cached('HVD_CUDA_INCLUDE')}/nccl.h"),
    "no-clang-format-14": lambda: not _succeeds("sh", "-c", "clang-format-14 --version || clang-format --version | grep -q ' 14[.]'"),
    "no-foreign-memory": _may_be_kept_out,
    "no-fault-handler": _may_not_handle_faults,
    "yama": lambda: _first_number("/proc/sys/kernel/yama/ptrace_scope") > 0,
    "no-memory-cgroup": lambda: not _may_limit_memory(),
    "no-cpuset-cgroup": lambda: not _may_make_cpusets(),
    "no-ipv6": _has_no_ipv6,
    "no-mount": lambda: not _succeeds("unshare", "--mount", "true"),
    "no-fuse": lambda: not _is_openable("/dev/fuse") or not _succeeds("unshare", "--mount", "true"),
    "no-user-namespaces": lambda: not _succeeds("unshare", "--user", "true"),
    "no-containers": lambda: not _succeeds("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--ipc",
                                           "mount", "-t", "tmpfs", "none", "/tmp"),
    "no-nodes": lambda: not _succeeds("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
                                      "PATH=$PATH:/usr/sbin:/sbin; ip link add n1 type veth peer name n2 && nft add table inet t && "
                                      "ip -6 addr add fd00::1/64 dev lo && mount -t tmpfs tmpfs /run && mount -t sysfs sysfs /sys"),
    "no-huge-pages": lambda: not os.path.exists("/sys/kernel/mm/hugepages"),
    "no-locked-memory": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == 0,
    "little-memory": lambda: _meminfo("MemAvailable") < 6 << 30,
    "daemon": _is_daemon_here,
    "user-hvdd": lambda: _succeeds("getent", "passwd", "hvdd"),
    "keras-2": _keras_2,
    "keras-3": lambda: not _keras_2(),
    "ci-asan": lambda: False,
    "ci-tsan": lambda: False,
}


class Entry(NamedTuple):
    """One line of the list."""
    test: str  # with * for anything
    condition: str
    why: str


def list_path() -> pathlib.Path:
    """The list; HVT_SKIPS names another one."""
    return pathlib.Path(os.environ.get("HVT_SKIPS") or TESTS / "skips.txt")


def parse(text: str) -> Iterator[tuple[int, Entry | None]]:
    """(line number, entry) of each line that is no comment; None for one that has not all three parts."""
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split(None, 2)
        if parts and not parts[0].startswith("#"):
            yield number, Entry(*parts) if len(parts) == 3 else None


@functools.lru_cache(maxsize=None)
def entries() -> list[Entry]:
    """All of them."""
    return [entry for _, entry in parse(list_path().read_text(encoding="utf-8")) if entry]


def matches(test: str, pattern: str) -> bool:
    """Whether a pattern of the list means a test."""
    return fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))


def allowed(test: str, conditions: str = "") -> str:
    """Why a test may be skipped here, "" if it may not. An entry without parameters stands for all of them. `conditions`: how those
    begin that count."""
    names = (test, test.partition("[")[0])
    return next((f"{entry.condition}: {entry.why}" for entry in entries() for name in names
                 if entry.condition.startswith(conditions) and matches(name, entry.test) and CONDITIONS[entry.condition]()), "")


def name_of(path: str | os.PathLike, function: str = "") -> str:
    """A test's name here, by its file."""
    path = pathlib.Path(path).resolve()
    file = str(path.relative_to(TESTS)) if TESTS in path.parents else path.name
    return f"{file}::{function}" if function else file


def record(kind: str, test: str, text: str) -> None:
    """Notes an event: "listed" is a skip that was found in the list already, "skip" one still to be looked up, "late" a test
    that is tried again."""
    path = os.environ.get("HVT_EVENTS")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write("\t".join([kind, test, " ".join(text.split())]) + "\n")


def events(path: str | os.PathLike) -> list[list[str]]:
    """The [kind, test, text] that were noted."""
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
