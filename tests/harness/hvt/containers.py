# SPDX-License-Identifier: Apache-2.0
"""Trainers, or hvdd, in namespaces of their own, by unshare(1): what a container is made of."""
import pathlib
import signal
import subprocess
from typing import Any

from hvt import procs
from hvt.build import BUILD
from hvt.daemon import Daemon
from hvt.rank import Rank
from hvt.wait import wait_until

PID = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
USER = ("unshare", "--user", "--map-root-user")
# A root of its own: $1, an empty directory, gets what programs need, and $2, the runtime directory, as /run/hvd.
_ROOT = """set -e; root=$1; run=$2; build=$3; shift 3; mount -t tmpfs -o mode=755 root "$root"; cd "$root"
for each in /usr /bin /sbin /lib /lib64 "$build" /proc /dev; do
    [ ! -d "$each" ] || { mkdir -p ".$each"; mount --rbind "$each" ".$each"; }
done
mkdir -p run/hvd tmp etc; mount --bind "$run" run/hvd
exec chroot . env HVD_ADDRESS=/run/hvd TMPDIR=/tmp "$@"
"""


def root_of(daemon: Daemon, place: pathlib.Path) -> tuple[str, ...]:
    """The beginning of a command line: what follows has a root of its own, where hvdd's runtime directory is /run/hvd. `place` is
    an empty directory, which stays empty."""
    return ("unshare", "--mount", "--propagation", "private", "bash", "-c", _ROOT, "bash", str(place), str(daemon.address), str(BUILD))


def innermost(pid: int, name: str) -> int:
    """The pid here of the process `name` below unshare(1), which may be that process itself."""
    def look() -> int:
        at = [pid]
        while at and procs.name(at[0]) != name:
            at = procs.children(at[0])
        return at[0] if at else 0
    return wait_until(look, f"{name} to run in its namespaces")


def kill_trainer(rank: Rank) -> tuple[int, int]:
    """SIGKILL for the trainer behind a prefix; its pid here, and the time (CLOCK_MONOTONIC, ns) just before."""
    pid = innermost(rank.pid, "hvt-rank")
    outer = rank.process.pid
    rank.process.pid = pid
    try:
        return pid, rank.kill(signal.SIGKILL)
    finally:
        rank.process.pid = outer


class HiddenDaemon(Daemon):
    """A hvdd that is process 1 of a pid namespace, and sees nothing of the processes outside."""

    def __init__(self, **more: Any):
        super().__init__(prefix=PID, **more)

    @property
    def pid(self) -> int:
        return innermost(self.process.pid, "hvdd")

    def terminate(self, seconds: float = 10) -> int:
        subprocess.run(["kill", "-TERM", str(self.pid)], check=True)
        return self.wait(seconds)


def may_be_made() -> bool:
    """Whether this machine lets this user make what the tests need."""
    words = (*USER, *PID, "--ipc", "mount", "-t", "tmpfs", "none", "/tmp")
    return pathlib.Path("/proc/self/ns/user").exists() and subprocess.run(words, capture_output=True, check=False).returncode == 0
