# SPDX-License-Identifier: Apache-2.0
"""Engines that become their job's user: what they may do then, what that user can do to them, and a program with other
rights that a trainer executes while its op is in flight."""
import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import pytest

from hvt import SERVICE, Daemon, Status, as_service, procs, sanitized, wait_until, wire
from hvt.build import program, program_for_strangers, scaled
from hvt.daemon import with_rights
from hvt.job import Job
from hvt.rank import Rank, open_job
from hvt.units import ACTIVATE, UnitDaemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")

SCOPE = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
YAMA = SCOPE.exists() and SCOPE.read_text(encoding="ascii") != "0\n"
NOBODY = 65534
OTHER = 64739  # a third user
RIGHTS = ("setuid", "setgid", "kill")
CAPABILITY = {"kill": 5, "setgid": 6, "setuid": 7}
ALWAYS = {"HVD_FOREIGN_MEMORY": "always"}
FLOATS = 100_000


@pytest.fixture(name="daemon")
def _daemon() -> Iterator[Daemon]:
    """A hvdd for all users whose engines may become their job's user."""
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service(), rights=RIGHTS) as running:
        yield running


def status_of(pid: int) -> dict[str, str]:
    """The rows of /proc/PID/status."""
    rows = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: " ".join(value.split()) for name, value in (row.split(":", 1) for row in rows)}


def rights_of(pid: int) -> set[int]:
    """All capabilities that the process has, or may pass on."""
    status = status_of(pid)
    sets = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    return {number for number in range(64) if any(one >> number & 1 for one in sets)}


def job_of(daemon: Daemon, user: int, name: str, size: int = 2) -> list[Rank]:
    """Ranks of a job of that user."""
    ranks = [daemon.rank(user=user, environment=ALWAYS) for _ in range(size)]
    open_job(ranks, name)
    return ranks


def check_usable(ranks: list[Rank]) -> None:
    ops = [rank.submit("barrier", "usable") for rank in ranks]
    for rank, op in zip(ranks, ops):
        assert rank.outcome(op).ok


@contextlib.contextmanager
def started(name: str, link: socket.socket, rights: Sequence[str]) -> Iterator[subprocess.Popen]:
    """A program of ours, as hvdd's user starts it: with `link`, which is closed here, as descriptor 3."""
    path, environment = program_for_strangers(name, {"PATH": os.environ["PATH"]})
    command = ["bash", "-c", f'exec "$@" 3<&{link.fileno()}', "bash", *with_rights(rights), path]
    with subprocess.Popen(command, env=environment, pass_fds=[link.fileno()], cwd="/", stderr=subprocess.DEVNULL) as process:
        link.close()
        try:
            yield process
        finally:
            process.kill()


def test_an_engine_has_its_jobs_user_and_no_rights(daemon):
    check_usable(job_of(daemon, NOBODY, "theirs"))
    engine = daemon.engine_of("theirs")
    status = status_of(engine)
    assert status["Uid"] == status["Gid"] == " ".join([str(NOBODY)] * 4)
    assert status["Groups"] == str(SERVICE) and status["NoNewPrivs"] == "1" and not rights_of(engine)
    limits = pathlib.Path(f"/proc/{engine}/limits").read_text(encoding="ascii")
    assert [row.split()[4:6] for row in limits.splitlines() if row.startswith("Max core")] == [["0", "0"]]


def test_nothing_else_of_a_service_becomes_anybody(daemon):
    """hvdd and its gate are the service's user; so is the engine of root's job, for no engine becomes root."""
    Job(daemon, 2, name="of-root").check_usable()
    engine = daemon.engine_of("of-root")
    assert {status_of(pid)["Uid"] for pid in (daemon.pid, daemon.gate(), engine)} == {" ".join([str(SERVICE)] * 4)}
    assert rights_of(daemon.pid) == set(CAPABILITY.values()) and not rights_of(daemon.gate()) and not rights_of(engine)


@pytest.mark.parametrize("name", ["hvdd-gate", "hvdd-gpu"])
def test_programs_that_hvdd_starts_give_up_what_they_inherit(name):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, started(name, theirs, RIGHTS) as process:
        wait_until(lambda: status_of(process.pid)["Name"] == name and not rights_of(process.pid), f"{name} to have no rights")


def test_a_service_gives_up_what_it_does_not_need():
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service(), rights=(*RIGHTS, "chown", "net_raw")) as daemon:
        assert rights_of(daemon.pid) == set(CAPABILITY.values())


@pytest.mark.skipif(not ACTIVATE, reason="systemd-socket-activate is not installed")
def test_engines_that_may_not_become_users_have_the_services_user_and_no_rights_either():
    """Also where their unit gives them CAP_SYS_PTRACE, because of Yama: that would be every process' memory."""
    has_it = int(status_of(os.getpid())["CapEff"], 16) >> 19 & 1
    with UnitDaemon(options={"private": "no"}, folder_mode=0o755, user=as_service(),
                    unit_rights={"engine": ("sys_ptrace" if has_it else "chown",)}) as daemon:
        check_usable(job_of(daemon, NOBODY, "theirs"))
        engine = daemon.engine_of("theirs")
        assert status_of(engine)["Uid"] == " ".join([str(SERVICE)] * 4) and not rights_of(engine)


# ---- a program with other rights ----


@pytest.fixture(name="folder")
def _folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix="hvt-other-") as path:
        os.chmod(path, 0o755)
        yield pathlib.Path(path)


def other_program(folder: pathlib.Path, owner: int) -> str:
    """hvt-other, which whoever executes it runs as `owner`."""
    path = folder / f"as-{owner}"
    shutil.copy(program("hvt-other"), path)
    os.chown(path, owner, owner)
    path.chmod(0o4755)
    return str(path)


@pytest.mark.skipif(not procs.may_be_entered() or YAMA, reason="the kernel does not let the engine into other processes")
@pytest.mark.parametrize("kind", ["allreduce", "broadcast"])
@pytest.mark.parametrize("owner", [NOBODY, OTHER], ids=["own", "other"])
def test_the_memory_of_a_program_with_other_rights_is_neither_read_nor_written(daemon, folder, kind, owner):
    """A trainer executes it while an op is in flight, with the session's socket. The engine of a hvdd that ran as root, or had
    CAP_SYS_PTRACE, would give its peer that program's memory, and it the peer's. A program of the user himself shows that the
    engine would have gone there."""
    daemon.allow("memory-gone", "rank-lost", "session-ended", "rank-ended")
    ranks = job_of(daemon, NOBODY, "theirs")
    more = {"dtype": "float32", "dims": [FLOATS], "in_place": True} | ({"root": 1} if kind == "broadcast" else {})
    ops = [ranks[0].submit(kind, "w", **more)]
    assert ranks[0].ask("become", path=other_program(folder, owner), op=ops[0])["status"] == Status.OK
    ops.append(ranks[1].submit(kind, "w", **more))
    outcome = ranks[1].outcome(ops[1])
    changed = ranks[0].ask("look")["changed"]
    if owner == NOBODY:
        assert outcome.ok and (kind == "allreduce" or changed == 4 * FLOATS)
        assert kind == "broadcast" or struct.unpack_from("<f", outcome.data)[0] == 7
        return
    assert outcome.status == Status.ERR_INVALID and outcome.culprit == 0 and "not permitted" in outcome.text, outcome
    assert changed == 0 and struct.pack("<f", 7) not in (outcome.data or b"")


# ---- a hvdd that lies ----


def peer_of(user: int) -> socket.socket:
    """The end of a connection whose other end is that user's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        listener.bind("\0hvt-peer-" + secrets.token_hex(8))
        listener.listen(1)
        os.setegid(user)
        os.seteuid(user)
        try:
            peer.connect(listener.getsockname())
        finally:
            os.seteuid(0)
            os.setegid(0)
        return listener.accept()[0]


@pytest.mark.parametrize("connected, becomes", [(NOBODY, NOBODY), (0, SERVICE), (None, SERVICE)])
def test_an_engine_becomes_the_user_who_has_connected_and_no_other(connected, becomes):
    """Whatever hvdd, which somebody may have taken over, says of the job. And never root."""
    start = wire.field(wire.ENGINE_START, wire.message(
        (1, "lie"), (2, 1), (3, 1), (4, OTHER), (5, 1), (6, 16), (7, 1 << 20), (8, 60 * 10**9), (9, "/nonexistent")))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, started("hvdd-engine", theirs, ("setuid", "setgid")) as process:
        with contextlib.nullcontext() if connected is None else peer_of(connected) as peer:
            socket.send_fds(ours, [start], [peer.fileno()] if peer else [])
        wanted = " ".join([str(becomes)] * 4)
        wait_until(lambda: (status_of(process.pid)["Uid"], rights_of(process.pid)) == (wanted, set()), f"the engine to be {becomes}")
        wait_until(lambda: len(procs.fds(process.pid)) > 5, "the engine to have begun")
        assert status_of(process.pid)["Uid"] == wanted


# ---- the user and his engine ----


_LOOK = """
import ctypes, os, sys
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
here, there = ctypes.create_string_buffer(8), Part(8, 8)
libc.process_vm_readv(pid, ctypes.byref(Part(ctypes.addressof(here), 8)), 1, ctypes.byref(there), 1, 0)
print(ctypes.get_errno())
print(libc.ptrace(16, pid, None, None))  # PTRACE_ATTACH
try:
    print(os.open(f"/proc/{pid}/mem", os.O_RDWR))
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(bool(sanitized()), reason="a sanitizer has to look into the engine")
def test_a_user_cannot_look_into_his_engine(daemon):
    job_of(daemon, NOBODY, "theirs", 1)
    done = subprocess.run([sys.executable, "-c", _LOOK, str(daemon.engine_of("theirs"))], user=NOBODY, group=NOBODY,
                          extra_groups=[], cwd="/", capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.split() == ["1", "-1", "13"], done


def test_a_user_who_ends_his_engine_ends_his_job_alone(daemon):
    daemon.allow("engine-ended")
    mine = Job(daemon, 2, name="mine")
    theirs = job_of(daemon, NOBODY, "theirs")
    subprocess.run(["kill", "-KILL", str(daemon.engine_of("theirs"))], user=NOBODY, check=True, timeout=20)
    wait_until(lambda: theirs[0].state().status == Status.ERR_ENGINE_LOST, "their job to end")
    mine.check_usable()
    check_usable(job_of(daemon, NOBODY, "theirs"))


def test_hvdd_ends_an_engine_of_another_user_that_stands_still():
    with Daemon(options={"private": "no", "engine-silence": f"{scaled(0.3)}s"}, folder_mode=0o755, user=as_service(), rights=RIGHTS) as daemon:
        daemon.allow("engine-silent", "engine-killed", "engine-ended")
        job_of(daemon, NOBODY, "theirs")
        engine = daemon.engine_of("theirs")
        subprocess.run(["kill", "-STOP", str(engine)], user=NOBODY, check=True, timeout=20)
        wait_until(lambda: procs.state(engine) in "ZX", "hvdd to end the engine", 10)


# ---- hvdd starts anew ----


def test_an_engine_that_has_become_another_user_finds_the_next_hvdd(daemon):
    ranks = job_of(daemon, NOBODY, "theirs")
    engine = daemon.engine_of("theirs")
    daemon.kill()
    daemon.start()
    row, = wait_until(daemon.jobs, "the engine to come back")
    assert (row["engine_pid"], row["uid"], row["attached"]) == (engine, NOBODY, 2)
    check_usable(ranks)


_HELLO = """
import os, socket, sys
def varint(value):
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])
body = bytes.fromhex(sys.argv[2]) + varint(6 << 3) + varint(os.getpid())
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(varint(int(sys.argv[3]) << 3 | 2) + varint(len(body)) + body)
sys.stdin.read()
"""


@contextlib.contextmanager
def hello(daemon: Daemon, owner: int, groups: list[int]) -> Iterator[None]:
    """A process of NOBODY says that it is the engine of a job of `owner`."""
    said = wire.message((1, wire.PROTOCOL_VERSION), (2, "ghost"), (3, 1), (4, 2), (5, owner))
    with subprocess.Popen([sys.executable, "-c", _HELLO, str(daemon.attach_path), said.hex(), str(wire.ENGINE_HELLO)],
                          user=NOBODY, group=NOBODY, extra_groups=groups, cwd="/", stdin=subprocess.PIPE):
        yield


@pytest.mark.parametrize("owner, groups", [(NOBODY, []), (NOBODY, [NOBODY]), (NOBODY, [SERVICE, OTHER]), (OTHER, [SERVICE]), (0, [SERVICE])])
def test_no_process_speaks_for_an_engine_that_it_is_not(daemon, owner, groups):
    """Not even for one of its own user's jobs; an engine of this user's, which has the group, for no job of another's."""
    with hello(daemon, owner, groups):
        line = daemon.expect_line("attach-refused", "only engines that a hvdd of this service has started")
        assert line.pairs["uid"] == str(NOBODY) and not daemon.jobs()


def test_the_group_of_the_service_is_what_an_engine_is_known_by(daemon):
    """Else the test above would test nothing."""
    daemon.allow("engine-ended")
    with hello(daemon, NOBODY, [SERVICE]):
        assert daemon.expect_line("engine-back").pairs["job"] == "ghost"


# ---- units ----


@pytest.mark.skipif(not ACTIVATE, reason="systemd-socket-activate is not installed")
def test_an_engine_of_a_unit_becomes_its_jobs_user_and_hvdd_itself_cannot():
    """As with the drop-ins of systemd/engines-as-users."""
    with UnitDaemon(options={"private": "no"}, folder_mode=0o755, user=as_service(), rights=("kill",),
                    unit_rights={"engine": ("setuid", "setgid")}) as daemon:
        ranks = job_of(daemon, NOBODY, "theirs")
        check_usable(ranks)
        engine = daemon.engine_of("theirs")
        assert status_of(engine)["Uid"] == " ".join([str(NOBODY)] * 4) and not rights_of(engine)
        assert rights_of(daemon.pid) == {CAPABILITY["kill"]}
        daemon.kill()
        daemon.start()
        assert wait_until(daemon.jobs, "the engine to come back")[0]["engine_pid"] == engine
        check_usable(ranks)
