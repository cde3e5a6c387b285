# SPDX-License-Identifier: Apache-2.0
"""hvdd under systemd: the units as installed, socket activation, and the notify protocol with a real NOTIFY_SOCKET."""
import array
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from hvt.build import SOURCE, scaled
from hvt.ctl import Ctl
from hvt.daemon import SERVICE, as_service, clean_environment, service_programs
from hvt.install import Installation, run
from hvt.rank import Rank
from hvt.wait import Expired, check_prompt, wait_until

EXPOSURE_MAX = {"hvdd.service": 10, "hvdd-engine@.service": 16, "hvdd-gate@.service": 15,
                "hvdd-gpu@.service": 19}  # of 100, by systemd-analyze security
AS_USERS_MAX = {"hvdd.service": 10, "hvdd-engine@.service": 21}  # with the drop-ins of engines-as-users
SOCKETS = ("hvdd.socket", "hvdd-admin.socket", "hvdd-engine.socket", "hvdd-gate.socket", "hvdd-gpu.socket")
PARTS = "hvdd-parts.target"


def need(tool: str) -> str:
    """Path of a systemd tool; the test is skipped where it does not exist."""
    path = shutil.which(tool)
    if not path:
        pytest.skip(f"{tool} is not installed")
    return path


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installation:
    """The units refer to the installed programs, so these have to be there."""
    return Installation(tmp_path_factory.mktemp("prefix"))


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A directory with a short name (socket paths have 107 bytes) that hvdd accepts as its own."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="hvt-"))
    path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, SERVICE, SERVICE)
    yield path
    shutil.rmtree(path)


# ---- units ----------------------------------------------------------------------------------------------------------


def units(installed: Installation) -> list[str]:
    return [str(installed.prefix / "lib/systemd/system" / name) for name in (*EXPOSURE_MAX, *SOCKETS, PARTS)]


def settings_of(unit: str) -> dict[str, str]:
    """Of settings that stand there twice, the last."""
    text = pathlib.Path(unit).read_text(encoding="utf-8")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def values_of(unit: str, setting: str) -> list[str]:
    """Of a setting that adds up."""
    return re.findall(f"^{setting}=(.*)$", pathlib.Path(unit).read_text(encoding="utf-8"), re.MULTILINE)


def test_systemd_finds_nothing_wrong_with_the_units(installed):
    done = run(need("systemd-analyze"), "verify", "--man=no", *units(installed))
    assert [line for line in done.stderr.splitlines() if "hvdd" in line] == []


def test_systemd_does_find_a_wrong_unit(installed, tmp_path):
    """The check above can fail."""
    text = pathlib.Path(units(installed)[0]).read_text(encoding="utf-8")
    wrong = tmp_path / "hvdd.service"
    wrong.write_text(text.replace("bin/hvdd ", "bin/no-such-program "), encoding="utf-8")
    done = subprocess.run([need("systemd-analyze"), "verify", "--man=no", str(wrong), *units(installed)[1:]],
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 or "no-such-program" in done.stderr


def test_what_hvdd_needs_while_it_drains_is_not_ordered_by_its_own_stop(installed):
    """systemd starts no unit that is ordered before one that is being stopped. Through a target that is not stopped, it does."""
    own, *parts = units(installed)[:len(EXPOSURE_MAX)]
    assert PARTS in settings_of(own)["After"].split() and PARTS in settings_of(own)["Wants"].split()
    for part in parts:
        assert values_of(part, "Before") == [PARTS], part


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_a_service_is_hardened(installed, name):
    unit = next(unit for unit in units(installed) if unit.endswith(name))
    run(need("systemd-analyze"), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX[name]}", unit)


@pytest.mark.parametrize("name", AS_USERS_MAX)
def test_units_whose_engines_become_users_are_hardened_too(installed, tmp_path, name):
    """With the drop-ins that are installed as examples."""
    plain = next(unit for unit in units(installed) if unit.endswith(name))
    more = installed.prefix / f"share/doc/hvdd/engines-as-users/{name}.conf"
    unit = tmp_path / name
    unit.write_text(pathlib.Path(plain).read_text(encoding="utf-8") + more.read_text(encoding="utf-8"), encoding="utf-8")
    run(need("systemd-analyze"), "security", "--offline=yes", f"--threshold={AS_USERS_MAX[name]}", str(unit))
    done = run(need("systemd-analyze"), "verify", "--man=no", str(unit), *(one for one in units(installed) if not one.endswith(name)))
    assert [line for line in done.stderr.splitlines() if "hvdd" in line] == []


def test_who_has_a_network(installed):
    """hvdd has none and needs none; engines, the gate and NCCL connect to other nodes."""
    service, engine, gate, gpu = (settings_of(unit) for unit in units(installed)[:4])
    assert (service["PrivateNetwork"], service["PrivateDevices"], service["RestrictAddressFamilies"]) == ("yes", "yes", "AF_UNIX")
    for name in ("engine", "gate", "gpu"):
        listens = settings_of(str(installed.prefix / f"lib/systemd/system/hvdd-{name}.socket"))
        assert f"--{name}-socket {listens['ListenSequentialPacket']}" in service["ExecStart"]
        assert (listens["Accept"], listens["SocketMode"], listens["SocketUser"]) == ("yes", "0600", service["User"])
        assert listens["TriggerLimitIntervalSec"] == "0", "a user who has many jobs could put the socket down"
    for unit in (engine, gate, gpu):
        assert "PrivateNetwork" not in unit and {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(unit["RestrictAddressFamilies"].split())
        assert unit["User"] == service["User"] and os.access(unit["ExecStart"], os.X_OK)


def test_no_core_file_has_what_is_a_users(installed):
    assert {settings_of(unit)["LimitCORE"] for unit in units(installed)[:len(EXPOSURE_MAX)]} == {"0"}


def test_who_has_devices(installed):
    """A GPU's worker alone: NVIDIA's, and those of RDMA, by which NCCL reaches other nodes. RDMA locks memory."""
    service, engine, gate, gpu = (settings_of(unit) for unit in units(installed)[:4])
    assert {unit["PrivateDevices"] for unit in (service, engine, gate)} == {"yes"} and "PrivateDevices" not in gpu
    assert (gpu["DevicePolicy"], gpu["LimitMEMLOCK"]) == ("closed", "infinity")
    assert values_of(units(installed)[3], "DeviceAllow") == ["char-nvidia* rw", "char-infiniband_verbs rw"]
    assert not any(values_of(unit, "DeviceAllow") for unit in units(installed)[:3])


def test_a_crash_or_a_restart_of_the_service_ends_no_engine(installed):
    """Nothing binds an engine to hvdd.service, and what stops both stops hvdd first: it drains."""
    for unit in (settings_of(units(installed)[1]), settings_of(units(installed)[3])):
        assert not {"Requires", "BindsTo", "PartOf", "Requisite", "StopPropagatedFrom"} & set(unit)
        assert unit["Before"] == PARTS


def test_engines_survive_a_restart_of_the_service(installed):
    """What systemd would have to do wrong to a running job is excluded by name."""
    text = pathlib.Path(units(installed)[0]).read_text(encoding="utf-8")
    for line in ("KillMode=process", "OOMPolicy=continue", "RuntimeDirectoryPreserve=yes", "NotifyAccess=main"):
        assert re.search(f"^{line}$", text, re.MULTILINE)


def test_a_service_that_is_made_to_crash_again_and_again_comes_back(installed):
    """No start limit puts it down for good; a loop of restarts is slower than what a socket unit takes for a runaway
    (TriggerLimitBurst=20 in TriggerLimitIntervalSec=2s by default)."""
    settings = settings_of(units(installed)[0])
    assert settings["StartLimitIntervalSec"] == "0" and settings["Restart"] == "on-failure"
    span = run(need("systemd-analyze"), "timespan", settings["RestartSec"]).stdout
    restart_us = int(re.search(r"μs: (\d+)", span).group(1))
    assert 2_000_000 / 20 < restart_us < 1_000_000, "a socket unit would fail, or attaches resume too late"
    assert settings["RestartPreventExitStatus"] == "2 203"


def test_user_and_directory_are_made(installed, tmp_path):
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        (tmp_path / "etc" / name).write_text("root:x:0:0:root:/root:/bin/sh\n" if name == "passwd" else "root:x:0:\n")
    run(need("systemd-sysusers"), f"--root={tmp_path}", str(installed.prefix / "lib/sysusers.d/hvdd.conf"))
    passwd = dict(line.split(":", 1) for line in (tmp_path / "etc/passwd").read_text().splitlines())
    assert "hvdd" in passwd
    if os.getuid() != 0:
        return
    run(need("systemd-tmpfiles"), "--create", f"--root={tmp_path}", str(installed.prefix / "lib/tmpfiles.d/hvdd.conf"))
    made = (tmp_path / "run/hvdd").stat()
    assert (made.st_mode & 0o7777, str(made.st_uid)) == (0o755, passwd["hvdd"].split(":")[1])


# What the commands of the man page meet: a user hvdd, and a /run that only root may write to.
BARE = """set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$1" /etc/passwd
mount --bind "$2" /etc/group
"""


def test_hvdd_starts_by_the_commands_of_the_man_page_without_systemd(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    page = (SOURCE / "docs/man/hvdd.8.scd").read_text(encoding="utf-8")
    commands = re.findall(r"^\t(.+)$", page.split("\nWithout systemd, as root:\n")[1].split("\nThere hvdd")[0], re.MULTILINE)
    for name, row in (("passwd", f"hvdd:x:{SERVICE}:{SERVICE}::/:/bin/sh\n"), ("group", f"hvdd:x:{SERVICE}:\n")):
        (tmp_path / name).write_text(pathlib.Path("/etc", name).read_text(encoding="utf-8") + row, encoding="utf-8")
    hvdd, engine, environment = service_programs(clean_environment())
    environment["PATH"] = f"{pathlib.Path(hvdd).parent}:{environment['PATH']}"
    script = BARE + "\n".join(commands) + f" --engine={engine} --ready-fd=1\n:"  # the shell stays, and ends all with itself
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*words, "sh", "-c", script, "sh", str(tmp_path / "passwd"), str(tmp_path / "group")],
                                   env=environment, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout.readline() == b"ready\n", (tmp_path / "log").read_text(encoding="utf-8")
    finally:
        process.kill()
        process.communicate(timeout=scaled(10))


# ---- socket activation ----------------------------------------------------------------------------------------------


def stop(process: subprocess.Popen) -> int:
    process.terminate()
    try:
        return process.wait(scaled(10))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(scaled(5))


def attach(folder: pathlib.Path) -> None:
    """A real trainer attaches, reduces and leaves."""
    rank = Rank(dict(clean_environment(), HVD_ADDRESS=str(folder), HVD_SERVICE_UID=str(SERVICE)))
    try:
        rank.open(job="activated", rank=0, size=1)
        rank.submit("barrier", "b")
        rank.close()
    finally:
        rank.stop()


def listens(path: pathlib.Path) -> bool:
    """Whether connections to it are taken: a socket has its path before that. Fields: proc_pid_net(5)."""
    rows = [line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines()]
    return any(row[-1] == str(path) and int(row[3], 16) & 0x10000 for row in rows if len(row) == 8)


def activate(folder: pathlib.Path, name: str, *options: str) -> subprocess.Popen:
    """systemd-socket-activate that waits on the socket `name` for its first connection, and then becomes hvdd."""
    hvdd, engine, environment = service_programs(clean_environment())
    kept = [f"--setenv={name}={value}" for name, value in environment.items()
            if name.endswith("SAN_OPTIONS") or name == "LD_LIBRARY_PATH"]
    process = subprocess.Popen([need("systemd-socket-activate"), *options, *kept, f"--listen={folder}/{name}.sock",
                                f"--fdname={name}", hvdd, "--private=no", f"--engine={engine}", f"--runtime-dir={folder}"],
                               env=environment, **as_service())
    wait_until(lambda: listens(folder / f"{name}.sock"), "systemd-socket-activate to listen")
    return process


def test_hvdd_is_started_by_the_first_trainer(folder):
    process = activate(folder, "attach", "--seqpacket")
    try:
        assert not (folder / "hvdd.lock").exists(), "hvdd runs before anybody asked for it"
        inode = (folder / "attach.sock").stat().st_ino
        attach(folder)
        attach(folder)
        assert (folder / "attach.sock").stat().st_ino == inode, "hvdd replaced the socket it was given"
        assert Ctl(folder, dict(os.environ, HVD_SERVICE_UID=str(SERVICE))).json("status")["daemon"]["pid"] == process.pid
        assert stop(process) == 0
    finally:
        stop(process)
    assert (folder / "attach.sock").exists(), "the socket is the service manager's; hvdd must not remove it"
    assert not (folder / "admin.sock").exists()


def test_hvdd_is_started_by_the_first_question(folder):
    process = activate(folder, "admin")
    try:
        assert Ctl(folder, dict(os.environ, HVD_SERVICE_UID=str(SERVICE))).json("status")["daemon"]["pid"] == process.pid
        assert Ctl(folder, dict(os.environ, HVD_SERVICE_UID=str(SERVICE))).json("jobs")["jobs"] == []
        assert stop(process) == 0
    finally:
        stop(process)
    assert (folder / "admin.sock").exists(), "the socket is the service manager's; hvdd must not remove it"
    assert not (folder / "attach.sock").exists()


# ---- notify ---------------------------------------------------------------------------------------------------------


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, folder: pathlib.Path):
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.path.chmod(0o777)
        self.seen: list[str] = []
        self.stored: dict[str, int] = {}

    def receive(self, deadline: float) -> list[str]:
        """The assignments of the next message."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(64))
        except TimeoutError:
            return []
        lines = data.decode().splitlines()
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
        names = [line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")]
        for fd in fds:
            self.stored[names[0] if names else ""] = fd
        self.seen += lines
        return lines

    def expect(self, assignment: str, seconds: float = 10) -> list[str]:
        """Waits for a message with this assignment."""
        deadline = time.monotonic() + scaled(seconds)
        while time.monotonic() < deadline:
            lines = self.receive(deadline)
            if assignment in lines:
                return lines
        raise Expired(f"no {assignment}; seen: {self.seen}")

    def close(self) -> None:
        """Also drops the stored descriptors."""
        self.socket.close()
        for fd in self.stored.values():
            os.close(fd)


@pytest.fixture
def manager(folder) -> Iterator[Manager]:
    """A service manager that listens."""
    with contextlib.closing(Manager(folder)) as running:
        yield running


def start(folder: pathlib.Path, manager: Manager, *, attach_fd: int | None = None,
          **settings: str) -> subprocess.Popen:
    """hvdd as systemd would start it, for all users and not as root; `attach_fd` is handed over as descriptor 3."""
    hvdd, engine, environment = service_programs(dict(clean_environment(), NOTIFY_SOCKET=str(manager.path), **settings))
    command = [hvdd, "--private=no", f"--engine={engine}", f"--runtime-dir={folder}/run"]
    if attach_fd is None:
        return subprocess.Popen(command, env=environment, **as_service())
    script = (f"[ {attach_fd} = 3 ] || exec 3<&{attach_fd} {attach_fd}<&-; "
              'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=attach exec "$@"')
    return subprocess.Popen(["bash", "-c", script, "bash", *command], env=environment, pass_fds=[attach_fd],
                            **as_service())


def test_hvdd_says_ready_answers_the_watchdog_and_says_stopping(folder, manager):
    process = start(folder, manager, WATCHDOG_USEC="200000")
    try:
        lines = manager.expect("READY=1")
        assert any(line.startswith("STATUS=") for line in lines)
        assert (folder / "run/attach.sock").exists(), "READY came before the socket"
        began_ns = time.monotonic_ns()
        for _ in range(5):
            manager.expect("WATCHDOG=1", 2)
        check_prompt("the watchdog was answered five times", time.monotonic_ns() - began_ns, 1_000_000_000)
        process.terminate()
        assert "EXTEND_TIMEOUT_USEC=50000000" in manager.expect("STOPPING=1"), "drain-timeout, and twenty seconds to end"
        assert process.wait(scaled(10)) == 0
    finally:
        stop(process)


def test_hvdd_says_reloading_on_sighup_and_ready_again(folder, manager):
    process = start(folder, manager)
    try:
        manager.expect("READY=1")
        process.send_signal(signal.SIGHUP)
        lines = manager.expect("RELOADING=1")
        assert any(line.startswith("MONOTONIC_USEC=") for line in lines)
        if "READY=1" not in lines:
            manager.expect("READY=1")
    finally:
        assert stop(process) == 0


def test_a_trainer_that_connects_while_hvdd_restarts_is_served_by_the_next_one(folder, manager):
    """The attach socket survives in the fd store, and with it the queue of connections."""
    first = start(folder, manager)
    try:
        manager.expect("READY=1")
        deadline = time.monotonic() + scaled(5)
        while "attach" not in manager.stored and time.monotonic() < deadline:
            manager.receive(deadline)
        assert "FDSTORE=1" in manager.seen and "attach" in manager.stored, manager.seen
    finally:
        first.kill()
        first.wait(scaled(5))
    rank = Rank(dict(clean_environment(), HVD_ADDRESS=str(folder / "run"), HVD_SERVICE_UID=str(SERVICE)))
    second = None
    try:
        rank.post("open", job="waiting", rank=0, size=1)
        second = start(folder, manager, attach_fd=manager.stored["attach"])
        manager.expect("READY=1")
        assert rank.collect()["status"] == 0
        rank.close()
    finally:
        rank.stop()
        if second:
            assert stop(second) == 0
