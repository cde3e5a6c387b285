# SPDX-License-Identifier: Apache-2.0
"""What /proc says about the processes of one test: they carry HVD_TEST_TOKEN in their environment."""
import ctypes
import os
import pathlib
import subprocess
import sys

TOKEN = "HVD_TEST_TOKEN"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def pids() -> list[int]:
    """Every process of the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def state(pid: int) -> str:
    """The state letter of /proc/PID/stat; "X" when there is no such process."""
    stat = _read(f"/proc/{pid}/stat")
    return chr(stat[stat.rindex(b")") + 2]) if stat else "X"


def parent(pid: int) -> int:
    """The parent's pid, 0 when the process is gone."""
    stat = _read(f"/proc/{pid}/stat")
    return int(stat[stat.rindex(b")") + 4:].split()[0]) if stat else 0


def cmdline(pid: int) -> str:
    """The command line with spaces."""
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def name(pid: int) -> str:
    """What a process calls itself; "" when it is gone."""
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()


def waits_in(pid: int) -> str:
    """The function of the kernel that a process sleeps in; "0" or "" where it does not or that is not shown."""
    return _read(f"/proc/{pid}/wchan").decode(errors="replace")


def with_token(token: str, folder: str = "") -> dict[int, str]:
    """pid -> command line of the living processes that carry the token or name `folder` on their command line."""
    found = {}
    needle = f"{TOKEN}={token}".encode()
    for pid in pids():
        if pid == os.getpid() or state(pid) in "ZX":
            continue
        line = cmdline(pid)
        if needle in _read(f"/proc/{pid}/environ").split(b"\0") or (folder and folder in line):
            found[pid] = line
    return found


def fds(pid: int) -> dict[int, str]:
    """Descriptor -> target of a process; empty when it is gone."""
    folder = f"/proc/{pid}/fd"
    found = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
    return found


def has_open(pid: int, fd: int, path: str | os.PathLike[str]) -> bool:
    """Whether the descriptor is of this file, by whatever name the process knows it."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), os.stat(path))
    except OSError:
        return False


def memfds(pid: int) -> list[str]:
    """The memfds that a process holds open or has mapped."""
    held = [target for target in fds(pid).values() if "/memfd:hv" in target]
    maps = _read(f"/proc/{pid}/maps").decode(errors="replace").splitlines()
    return held + [line.split(None, 5)[5] for line in maps if "/memfd:hv" in line]


def memfd_bytes(pid: int) -> int:
    """The whole size of the memfds that a process has mapped; their pages come when they are first used."""
    total = 0
    for line in _read(f"/proc/{pid}/maps").decode(errors="replace").splitlines():
        if "/memfd:hv" in line:
            begin, end = line.split(None, 1)[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


def map_count(pid: int) -> int:
    """How many mappings a process has."""
    return _read(f"/proc/{pid}/maps").count(b"\n")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def sleeps(pid: int) -> int:
    """Times its main thread has gone to sleep; what has not been woken does not sleep again. -1 if there is none."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return -1


def children(pid: int) -> list[int]:
    """The living children of a process."""
    return [child for child in pids() if parent(child) == pid and state(child) not in "ZX"]


def leftovers(folder: pathlib.Path) -> list[str]:
    """What is still in a directory, as relative paths."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def available_bytes() -> int:
    """Memory that new processes can have without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


_READ = """import ctypes, sys
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
here, there = ctypes.create_string_buffer(8), Part(int(sys.argv[2]), 8)
libc = ctypes.CDLL(None, use_errno=True)
read = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(Part(ctypes.addressof(here), 8)), 1, ctypes.byref(there), 1, 0)
sys.exit(0 if read == 8 and here.raw == b"unlikely" else 1)
"""


def may_be_entered() -> bool:
    """Whether a process may read another one of the same user that it has not started, as engines do with trainers. To one
    without root's rights Yama may say no all the same."""
    word = ctypes.create_string_buffer(b"unlikely", 8)
    return subprocess.run([sys.executable, "-c", _READ, str(os.getpid()), str(ctypes.addressof(word))],
                          check=False).returncode == 0
