# SPDX-License-Identifier: Apache-2.0
"""A machine with a booted systemd: process 1 of namespaces of its own, on a root of its own.

    with Machine("m1", lower) as machine:
        machine.boot()
        machine.run(["systemctl", "start", "hvdd"])

`boot.sh` makes sure that nothing of this machine is there before anything of that root runs. Whatever runs in it ends with its
process 1, which ends with this process, after LIFE_S at the latest.
"""
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from hvt import procs
from hvt.build import BUILD, SOURCE, scaled
from hvt.install import run
from hvt.wait import wait_until

ROOT = pathlib.Path(os.environ.get("HVT_BOOTED_ROOT") or SOURCE / "build-booted/root")
OLDER = ROOT.with_name("older")  # the build of an older commit
LIFE_S = 1200
MEMORY_BYTES = 3 << 30
SYSTEMD = "/lib/systemd/systemd"
# What reaches the one kernel that all machines have: modules, the clock, devices, its messages, audit.
BOUNDS = ",".join(f"-{name}" for name in ("sys_module", "sys_time", "sys_rawio", "mknod", "syslog", "audit_control", "audit_read", "audit_write",
                                          "mac_admin", "mac_override", "wake_alarm", "block_suspend"))
_PREFIX = "hvt-booted-"  # then the pid of the test
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8", "HVD_ADDRESS": "/run/hvdd"}


class User(NamedTuple):
    """A user of the machine, whom scripts/booted.sh has made."""
    name: str
    uid: int


ALICE, BOB = User("alice", 2001), User("bob", 2002)


def missing() -> str:
    """Why there can be no machine; "" if there can."""
    if os.geteuid() != 0:
        return "only root can make namespaces"
    absent = [path for path in (ROOT / "complete", OLDER / "commit") if not path.exists()]
    return f"there is no {absent[0]}: run scripts/booted.sh" if absent else ""


def install(folder: pathlib.Path, build: pathlib.Path = BUILD) -> str:
    """The build as `cmake --install` puts it below /usr, over the root: the `lower` of a Machine."""
    run("cmake", "--install", str(build), "--prefix", "/usr", environment=dict(os.environ, DESTDIR=str(folder)))
    folder.chmod(0o755)
    return f"{folder}:{ROOT}"


class Cgroup(NamedTuple):
    """A cgroup of one hierarchy of the kernel."""
    path: pathlib.Path
    kind: str  # cgroup, which is version 1, or cgroup2
    options: str  # of its mount


def _mounts() -> dict[str, Cgroup]:
    """The hierarchies, by their names in /proc/self/cgroup, and where each one begins."""
    found = {}
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, rest = line.partition(" - ")
        kind, _source, options = rest.split()
        if kind == "cgroup2":
            found.setdefault("", Cgroup(pathlib.Path(place.split()[4]), kind, ""))
        elif kind == "cgroup":
            name = ",".join(word for word in options.split(",") if word not in ("rw", "ro", "xattr", "none", "clone_children"))
            found.setdefault(name, Cgroup(pathlib.Path(place.split()[4]), kind, f"none,{name.replace('=', ':')}" if "=" in name else name))
    return found


def _make_cgroups(name: str) -> list[Cgroup]:
    """A new one in every hierarchy, below this process's own."""
    made, mounts = [], _mounts()
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _number, hierarchy, path = line.split(":", 2)
        assert hierarchy in mounts, f"the cgroup hierarchy {hierarchy!r} is mounted nowhere"
        above = mounts[hierarchy].path / path.strip("/")
        _remove_left(above)
        cgroup = mounts[hierarchy]._replace(path=above / name)
        cgroup.path.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # without which a cgroup of version 1 takes no process
            if cgroup.kind == "cgroup" and (cgroup.path / setting).exists():
                (cgroup.path / setting).write_text((above / setting).read_text(encoding="ascii"), encoding="ascii")
        for setting in ("memory.limit_in_bytes", "memory.max"):
            if (cgroup.path / setting).exists():
                (cgroup.path / setting).write_text(str(MEMORY_BYTES), encoding="ascii")
        made.append(cgroup)
    return made


def _remove(tree: pathlib.Path) -> bool:
    """Whether a cgroup, or a directory of directories, is gone; it is not while processes in it end."""
    for folder, _names, _files in os.walk(tree, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not tree.exists()


def _remove_left(folder: pathlib.Path) -> None:
    """What a test that was killed has left: cgroups, or an empty directory and a canary."""
    for path in folder.glob(f"{_PREFIX}*"):
        if procs.state(int(path.name.removeprefix(_PREFIX).split("-")[0])) == "X":
            path.unlink() if path.is_file() else _remove(path)


class Machine:
    """One. `number` makes its address."""

    def __init__(self, name: str, lower: str, number: int = 1):
        self.name = name
        self.address = f"10.78.1.{number}"
        self.pid = 0  # of its process 1
        self._lower = lower
        _remove_left(pathlib.Path(tempfile.gettempdir()))
        self._work = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.canary = self._work.with_name(f"{self._work.name}.canary")
        self._cgroups: list[Cgroup] = []
        self._outer: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *error: Any) -> None:
        self.end()

    # ---- life ----

    def start(self, command: Sequence[str]) -> None:
        """`command` becomes process 1."""
        self.canary.write_text("of this machine\n", encoding="ascii")
        self._cgroups = _make_cgroups(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        dies = ["setpriv", "--pdeathsig", "KILL"]
        script = [str(pathlib.Path(__file__).with_name("boot.sh")), self._work, self._lower, self.name, self.canary, BOUNDS]
        cgroups = [f"{each.path}={each.kind}={each.options}" for each in self._cgroups]
        self._outer = subprocess.Popen([*dies, "timeout", "-s", "KILL", str(LIFE_S), *dies, *script, *cgroups, "--", *command],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.pid = wait_until(self._find, "process 1 to run", 10)

    def _find(self) -> int:
        """Process 1 when it runs `command`: boot.sh has changed its root by then."""
        assert self._outer.poll() is None, f"boot.sh: {self._outer.communicate()[0].decode(errors='replace')}"
        for unshare in procs.children(self._outer.pid):
            for pid in procs.children(unshare):
                with contextlib.suppress(OSError):
                    if procs.name(pid) not in ("bash", "boot.sh", "setpriv", "env") and self.path("/run/boot.log", pid).exists():
                        return pid
        return 0

    def boot(self) -> None:
        """systemd; until all that it starts has started."""
        self.start([SYSTEMD])
        wait_until(lambda: self.path("/run/systemd/private").exists(), "systemd to answer", 20)
        wait_until(lambda: self.output("systemctl", "is-system-running") not in ("", "initializing", "starting"), self._boot_state, 40, 0.1)
        state = self.output("systemctl", "is-system-running")
        assert state == "running", f"{state}: {self.output('systemctl', '--failed', '--no-legend', '--plain')}"

    def _boot_state(self) -> str:
        return self.output("systemctl", "list-jobs") + self.path("/run/boot.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def is_on(self) -> bool:
        """Whether process 1 lives."""
        return procs.state(self.pid) not in "ZX"

    def end(self) -> None:
        """Kills whatever runs in it."""
        for process in self._started:
            process.kill()
            process.communicate(timeout=scaled(10))
        self._started.clear()
        if self._outer:
            if self.pid and self.is_on():
                os.kill(self.pid, signal.SIGKILL)
            self._outer.kill()
            self._outer.communicate(timeout=scaled(10))
        for each in self._cgroups:
            wait_until(lambda path=each.path: _remove(path), f"{each.path} to be empty", 10)
        self._cgroups, self._outer, self.pid = [], None, 0
        self.canary.unlink(missing_ok=True)
        shutil.rmtree(self._work, ignore_errors=True)

    def connect(self, other: "Machine") -> None:
        """A cable to another machine, with an address at both ends."""
        run("ip", "link", "add", "eth0", "netns", str(self.pid), "type", "veth", "peer", "name", "eth0", "netns", str(other.pid))
        for each in (self, other):
            enter = ["nsenter", f"--net=/proc/{each.pid}/ns/net", "ip"]
            run(*enter, "addr", "add", f"{each.address}/24", "dev", "eth0")
            run(*enter, "link", "set", "eth0", "up")

    def upgrade(self, folder: pathlib.Path) -> None:
        """Copies the files of install(folder) over those that are there. As with a package, one that is in use is replaced."""
        run("cp", "--archive", "--remove-destination", f"{folder}/usr/.", str(self.path("/usr")))
        self.run(["systemctl", "daemon-reload"])

    # ---- processes ----

    def popen(self, command: Sequence[str], user: User | None = None, settings: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """A command inside, by root or a user; it has no more of this machine than three pipes."""
        who = [f"--reuid={user.uid}", f"--regid={user.uid}", "--clear-groups"] if user else []
        process = subprocess.Popen(["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
                                    "setpriv", "--pdeathsig", "KILL", f"--bounding-set={BOUNDS}", *who, "--", *map(str, command)],
                                   env=_ENVIRONMENT | (settings or {}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self._started = [each for each in self._started if each.poll() is None] + [process]
        return process

    def run(self, command: Sequence[str], user: User | None = None, *, check: bool = True, seconds: float = 30,
            settings: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command inside, finished."""
        process = self.popen(command, user, settings)
        out, err = process.communicate(timeout=scaled(seconds))
        assert not check or process.returncode == 0, f"{' '.join(map(str, command))}: exit status {process.returncode}: {out}{err}"
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def output(self, *command: str) -> str:
        """What root reads, whatever the exit status."""
        return self.run(command, check=False).stdout.strip()

    def path(self, inside: str | os.PathLike[str], pid: int = 0) -> pathlib.Path:
        """Where this machine sees a path of it."""
        return pathlib.Path(f"/proc/{pid or self.pid}/root{os.fspath(inside)}")

    # ---- systemd ----

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        text = self.output("systemctl", "show", *(f"--property={name}" for name in names), unit)
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def units(self, pattern: str) -> list[str]:
        """The names of those that are active."""
        listed = self.output("systemctl", "list-units", "--plain", "--no-legend", "--state=active", pattern)
        return [line.split()[0] for line in listed.splitlines()]

    def journal(self, *options: str) -> str:
        """The messages alone."""
        return self.output("journalctl", "--no-pager", "--output=cat", *options)
