# SPDX-License-Identifier: Apache-2.0
"""Every limit of base/limits.def, reached by another user: the sentence names it, hvdctl limits shows it, and the others go on.

The rows are read from the table, so a row without a way to reach it fails."""
import contextlib
import itertools
import json
import os
import pathlib
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hvt import Daemon, Status, as_service, being, stopped, wait_until, wire
from hvt.gpu import gpus
from hvt.job import Job
from hvt.zmtp import Zmtp

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRANGERS = NOBODY, OTHER, THIRD = 65534, 65533, 65532
NAMES = re.findall(r'^HVI_LIMIT(?:_FIXED)?\(\w+, "([^"]+)"', (ROOT / "base/limits.def").read_text(encoding="utf-8"), re.MULTILINE)
OPTIONS = {"max-jobs": 4, "max-jobs-per-user": 2, "start-rate-per-user": 1000, "max-sessions": 8, "max-sessions-per-user": 3,
           "max-pending": 6, "max-pending-per-user": 4, "max-admin": 6, "max-admin-per-user": 3, "admin-rate-per-user": 50,
           "region-limit": "1M", "region-bytes-per-user": "1400K", "region-bytes": "2M", "regions-per-session": 5, "engine-linger": "50ms"}
EXPECTED = ("attach-refused", "admin-limit", "region-refused", "op-failed", "rank-lost", "session-ended", "rank-ended")
_numbers = itertools.count()


@contextlib.contextmanager
def silent(path: pathlib.Path, kind: int, *counts: tuple[int, int]) -> Iterator[list[socket.socket]]:
    """Connections that say nothing: so many of each user."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for uid, count in counts:
            for _ in range(count):
                sockets.append(stack.enter_context(socket.socket(socket.AF_UNIX, kind)))
                with being(uid):
                    sockets[-1].connect(str(path))
        yield sockets


class Shared:
    """A hvdd for all users with small limits, and root's job."""

    def __init__(self, daemon: Daemon):
        self.daemon = daemon
        self.job = Job(daemon, 2, name="honest")

    def row(self, name: str, uid: int | None = None, job: str | None = None, asker: int = 0) -> dict[str, Any]:
        """Of hvdctl limits."""
        rows = self.daemon.ctl.json("limits", user=asker or None)["limits"]
        found = [row for row in rows if row["limit"] == name and row.get("uid") == uid and row.get("job") == job]
        assert len(found) == 1, (name, uid, job, rows)
        return found[0]

    def wait_used(self, name: str, used: int, uid: int | None = None, job: str | None = None) -> None:
        """Also what an engine says with its next beat."""
        wait_until(lambda: self.row(name, uid, job)["used"] == used, lambda: f"{used} used: {self.row(name, uid, job)}", step=0.02)

    def wait_quiet(self) -> None:
        """Nothing is left of the strangers."""
        self.daemon.ranks[2:], gone = [], self.daemon.ranks[2:]
        for rank in gone:
            rank.stop()
        wait_until(lambda: len(self.daemon.jobs()) == 1, "the strangers' jobs to end", step=0.02)
        self.wait_used("max-pending", 0)

    def ranks(self, uid: int, count: int, size: int) -> list[Any]:
        """The first ranks of a job of that user's; what became of each."""
        name = f"theirs{next(_numbers)}"
        rank = self.daemon.rank(user=uid)
        return [rank.try_open(name, number, size, session=number) for number in range(count)]

    def check_honest(self) -> None:
        """Root's job goes on, another user of root's kind gets in, and hvdctl is answered."""
        self.job.check_usable()
        rank = self.daemon.rank()
        assert rank.try_open("meanwhile", 0, 1, timeout_ms=2000).ok
        rank.close()
        assert self.daemon.ctl.json("status")["daemon"]["pid"] == self.daemon.pid


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with Daemon(options={"private": "no", "admin-mode": "0666"} | OPTIONS, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow(*EXPECTED)
        yield Shared(daemon)


def refused(outcomes: list[Any], text: str) -> None:
    """All but the last are well."""
    assert [outcome.ok for outcome in outcomes] == [True] * (len(outcomes) - 1) + [False], outcomes
    assert outcomes[-1].status == Status.ERR_DAEMON_LIMIT and text in outcomes[-1].text, outcomes[-1]


def jobs_of_all(shared: Shared) -> None:
    outcomes = [shared.ranks(uid, 1, 2)[0] for uid in (NOBODY, OTHER, THIRD)]
    shared.wait_used("max-jobs", 4)
    shared.job.check_usable()
    refused([*outcomes, *shared.ranks(THIRD, 1, 2)], "(max-jobs = 4)")


def jobs_of_a_user(shared: Shared) -> None:
    outcomes = [shared.ranks(NOBODY, 1, 2)[0] for _ in range(3)]
    refused(outcomes, "(max-jobs-per-user = 2)")
    shared.wait_used("max-jobs-per-user", 2, NOBODY)
    shared.check_honest()


def starts_of_a_user(_shared: Shared) -> None:
    """One job after the other, each of which is over before the next one comes. A hvdd of its own: the others start jobs, too."""
    options = {"private": "no", "admin-mode": "0666", "max-jobs-per-user": 2, "start-rate-per-user": 1, "engine-linger": "50ms"}
    with Daemon(options=options, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("attach-refused")
        other = Shared(daemon)
        rank, outcomes = daemon.rank(user=NOBODY), []
        while len(outcomes) < 20 and all(outcome.ok for outcome in outcomes):
            outcomes.append(rank.try_open(f"theirs{len(outcomes)}", 0, 1))
            if outcomes[-1].ok:
                rank.close()
                wait_until(lambda: len(daemon.jobs()) == 1, "it to be over", step=0.01)
        refused(outcomes, f"uid {NOBODY} starts jobs faster than one user may (start-rate-per-user = 1 a second); try again in ")
        other.check_honest()
        wait_until(lambda: rank.try_open("again", 0, 1).ok, "another job to be let in", step=0.05)


def sessions_of_all(shared: Shared) -> None:
    outcomes = [*shared.ranks(NOBODY, 3, 4), *shared.ranks(OTHER, 3, 4)]
    shared.wait_used("max-sessions", 8)
    shared.job.check_usable()
    refused([*outcomes, *shared.ranks(THIRD, 1, 2)], "(max-sessions = 8)")


def sessions_of_a_user(shared: Shared) -> None:
    refused(shared.ranks(NOBODY, 4, 5), "(max-sessions-per-user = 3)")
    shared.wait_used("max-sessions-per-user", 3, NOBODY)
    shared.check_honest()


def pending_of_all(shared: Shared) -> None:
    """The greediest user's oldest one makes room."""
    with silent(shared.daemon.attach_path, socket.SOCK_SEQPACKET, (OTHER, 2), (NOBODY, 4)) as sockets:
        shared.wait_used("max-pending", 6)
        shared.check_honest()
        reply = wire.Reply(sockets[2].recv(1 << 17), [])
        assert reply.status == Status.ERR_DAEMON_LIMIT and "(max-pending)" in reply.text and "oldest silent" in reply.text
        assert sockets[2].recv(1) == b""
        for kept in (*sockets[:2], *sockets[3:]):
            with pytest.raises(BlockingIOError):
                kept.recv(1, socket.MSG_DONTWAIT)


def pending_of_a_user(shared: Shared) -> None:
    with silent(shared.daemon.attach_path, socket.SOCK_SEQPACKET, (NOBODY, 4)):
        shared.wait_used("max-pending-per-user", 4, NOBODY)
        refused(shared.ranks(NOBODY, 1, 1), "(max-pending-per-user,")
        shared.check_honest()


def admin_of_all(shared: Shared) -> None:
    with silent(shared.daemon.admin_path, socket.SOCK_STREAM, (OTHER, 2), (NOBODY, 3), (THIRD, 1)) as sockets:
        shared.check_honest()
        sockets[2].recv(1 << 10)  # the gate's greeting
        assert sockets[2].recv(1) == b"", "NOBODY has most, and this is its oldest"
        shared.daemon.expect_line("admin-limit", f"(max-admin), and its user has most uid={NOBODY}")
        assert shared.row("max-admin")["most"] == 6


def admin_of_a_user(shared: Shared) -> None:
    with silent(shared.daemon.admin_path, socket.SOCK_STREAM, (NOBODY, 3)):
        assert shared.row("max-admin-per-user", NOBODY) == {
            "limit": "max-admin-per-user", "of": "user", "uid": NOBODY, "used": 3, "most": 3}
        with silent(shared.daemon.admin_path, socket.SOCK_STREAM, (NOBODY, 1)) as one:
            assert one[0].recv(1) == b""
            shared.daemon.expect_line("admin-limit", "max-admin-per-user")
        shared.check_honest()


def admin_rate_of_a_user(shared: Shared) -> None:
    """As often as the burst allows and once more."""
    status = wire.message((1, wire.PROTOCOL_VERSION), (2, 7), (3, b""))
    with being(OTHER):
        raw = Zmtp(shared.daemon.admin_path)
    with raw:
        raw.handshake()
        replies = []
        while not replies or 5 in replies[-1]:  # AdminReply.daemon
            raw.message(status)
            replies.append(wire.decode(raw.frame()))
        assert 1024 <= len(replies) <= 1200
        text = replies[-1][4][0].decode()
        assert wire.signed(replies[-1][3][0]) == Status.ERR_DAEMON_LIMIT and replies[-1][2] == [7]
        assert re.search(rf"uid {OTHER} .*\(admin-rate-per-user = 50 a second\); ask again in \d+ ms", text), text
        shared.check_honest()
        assert shared.row("admin-rate-per-user", OTHER)["used"] >= 50
        assert shared.daemon.ctl.run("status", user=NOBODY).returncode == 0
        wait_until(lambda: shared.daemon.ctl.run("status", user=OTHER).returncode == 0, "it to be let in again", step=0.02)


def alloc(shared: Shared, count: int, size: int) -> tuple[str, list[dict[str, Any]]]:
    rank = shared.daemon.rank(user=NOBODY, environment={"HVD_FOREIGN_MEMORY": "never"})
    name = f"theirs{next(_numbers)}"
    assert rank.try_open(name, 0, 1).ok
    return name, [rank.ask("alloc", bytes=size) for _ in range(count)]


def filled(shared: Shared, uid: int, sizes: list[int]) -> list[dict[str, Any]]:
    """A job of one rank of that user's for each size, in KiB: what was said of the region."""
    replies = []
    for size in sizes:
        rank = shared.daemon.rank(user=uid, environment={"HVD_FOREIGN_MEMORY": "never"})
        assert rank.try_open(f"theirs{next(_numbers)}", 0, 1).ok
        replies.append(rank.ask("alloc", bytes=size << 10))
    return replies


def region_bytes_of_a_user(shared: Shared) -> None:
    """In two jobs, each of which might have it. What is given up may be had again."""
    replies = filled(shared, NOBODY, [900, 600])
    assert [reply["status"] for reply in replies] == [Status.OK, Status.ERR_LIMIT], replies
    assert f"in other jobs of uid {NOBODY} " in replies[1]["text"] and "(region-bytes-per-user = 1433600)" in replies[1]["text"]
    shared.wait_used("region-bytes-per-user", 900 << 10, NOBODY)
    last = shared.daemon.ranks[-1]
    assert last.ask("alloc", bytes=500 << 10)["status"] == Status.OK
    shared.daemon.ranks[-2].close()
    wait_until(lambda: last.ask("alloc", bytes=400 << 10)["status"] == Status.OK, "the other job's share", step=0.05)
    shared.check_honest()


def region_bytes_of_all(shared: Shared) -> None:
    replies = filled(shared, NOBODY, [900, 500]) + filled(shared, OTHER, [700])
    assert [reply["status"] for reply in replies] == [Status.OK, Status.OK, Status.ERR_LIMIT], replies
    assert "(region-bytes = 2097152)" in replies[2]["text"]
    shared.wait_used("region-bytes", 1400 << 10)
    shared.job.check_usable()
    assert shared.daemon.ranks[-1].ask("alloc", bytes=600 << 10)["status"] == Status.OK


def region_bytes_of_a_job(shared: Shared) -> None:
    name, replies = alloc(shared, 2, 700 << 10)
    assert replies[0]["status"] == Status.OK and replies[1]["status"] == Status.ERR_LIMIT, replies
    assert "(region-limit)" in replies[1]["text"]
    wait_until(lambda: shared.row("region-limit", NOBODY, name).get("used", 0) >= 700 << 10, "the engine to have said so", step=0.02)
    shared.check_honest()


def regions_of_a_session(shared: Shared) -> None:
    name, replies = alloc(shared, 6, 4096)
    assert [reply["status"] for reply in replies] == [Status.OK] * 5 + [Status.ERR_LIMIT], replies
    assert "(regions-per-session)" in replies[5]["text"]
    assert shared.row("regions-per-session", NOBODY, name)["most"] == 5
    shared.check_honest()


def sets_of_a_job(shared: Shared) -> None:
    rank, name = shared.daemon.rank(user=NOBODY), f"theirs{next(_numbers)}"
    assert rank.try_open(name, 0, 1).ok
    for number in range(1023):
        assert rank.outcome(rank.submit("set_open", ranks=[0], tag=number)).ok
    outcome = rank.outcome(rank.submit("set_open", ranks=[0], tag=1023))
    assert not outcome.ok and "1024 process sets" in outcome.text, outcome
    assert shared.row("process-sets", NOBODY, name)["most"] == 1024
    shared.check_honest()


def log_lines_of_a_user(shared: Shared) -> None:
    def shout(uid: int, count: int) -> None:
        for _ in range(count):
            with silent(shared.daemon.attach_path, socket.SOCK_SEQPACKET, (uid, 1)) as one:
                one[0].send(b"garbage")
                one[0].recv(1 << 10)

    def lines(uid: int) -> int:
        return sum(line.pairs["uid"] == str(uid) for line in shared.daemon.lines("attach-refused"))

    shout(THIRD, 300)
    assert 90 <= lines(THIRD) < 200
    before = lines(0)
    shout(0, 1)
    wait_until(lambda: lines(0) == before + 1, "root's line")
    assert shared.row("log-rate", THIRD, asker=THIRD)["most"] == 10
    shared.check_honest()


def workers_of_gpus(name: str) -> Callable[[Shared], None]:
    """A hvdd of its own on the fake driver, whose one user has two jobs."""
    def reach(_shared: Shared) -> None:
        said = {"dtype": "int32", "dims": [4], "data": bytes(16), "reduce_op": "sum", "memory": "device"}
        with gpus("devices=2", "memory-refused", "op-failed", "worker-refused", **{name.replace("-", "_"): 1}) as daemon:
            first, second = Job(daemon, 1), Job(daemon, 1)
            for other in (second, first):  # the worker of the one that has it is no other's
                assert first.ranks[0].outcome(first.ranks[0].submit("allreduce", "x", gpu=0, **said)).ok
                refusal = other.ranks[0].try_submit("allreduce", "y", gpu=1, **said)
                assert not refusal.ok and f"({name})" in refusal.text, refusal
                other.check_usable()
            row, = (row for row in daemon.ctl.json("limits")["limits"] if row["limit"] == name)
            assert row["used"] == row["most"] == 1, row
    return reach


REACHED: dict[str, Callable[[Shared], None]] = {
    "max-jobs": jobs_of_all, "max-jobs-per-user": jobs_of_a_user, "start-rate-per-user": starts_of_a_user,
    "max-sessions": sessions_of_all,
    "max-sessions-per-user": sessions_of_a_user, "max-pending": pending_of_all, "max-pending-per-user": pending_of_a_user,
    "max-admin": admin_of_all, "max-admin-per-user": admin_of_a_user, "admin-rate-per-user": admin_rate_of_a_user,
    "region-bytes": region_bytes_of_all, "region-bytes-per-user": region_bytes_of_a_user, "region-limit": region_bytes_of_a_job, "regions-per-session": regions_of_a_session, "process-sets": sets_of_a_job,
    "log-rate": log_lines_of_a_user, "gpu-workers": workers_of_gpus("gpu-workers"), "gpu-workers-per-user": workers_of_gpus("gpu-workers-per-user")}


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_reached_named_and_nobody_elses(shared: Shared, name: str):
    REACHED[name](shared)
    shared.wait_quiet()


def test_connections_that_were_greeted_make_room_too(shared: Shared):
    with contextlib.ExitStack() as stack:
        peers = []
        for uid, count in ((OTHER, 2), (NOBODY, 3), (THIRD, 1)):
            for _ in range(count):
                with being(uid):
                    peers.append(stack.enter_context(Zmtp(shared.daemon.admin_path)))
                peers[-1].subscribe()
        shared.check_honest()
        assert peers[2].socket.recv(1) == b"", "NOBODY has most, and this is its oldest"
        shared.daemon.expect_line("admin-limit", f"(max-admin), and its user has most uid={NOBODY}")
    shared.wait_quiet()


def test_nothing_else_is_reached():
    assert set(REACHED) == set(NAMES)


def test_a_user_sees_its_own_shares_and_root_everybodys(shared: Shared):
    assert shared.ranks(NOBODY, 1, 2)[0].ok
    mine = shared.daemon.ctl.json("limits", user=NOBODY)["limits"]
    assert {row["uid"] for row in mine if row["of"] != "all"} == {NOBODY}
    assert {row["limit"] for row in mine if row["of"] == "all"} == {
        "max-jobs", "max-sessions", "max-pending", "max-admin", "gpu-workers", "region-bytes"}
    assert {row.get("uid") for row in shared.daemon.ctl.json("limits")["limits"]} >= {0, NOBODY}
    only = shared.daemon.ctl.json("limits", "--user", str(NOBODY))["limits"]
    assert {row["uid"] for row in only if row["of"] != "all"} == {NOBODY}
    done = shared.daemon.ctl.run("limits", "--user", "root", "--json", user=NOBODY)
    assert done.returncode == 1 and "another user" in json.loads(done.stdout)["error"]["text"]
    assert "max-jobs-per-user" in shared.daemon.ctl.run("limits", user=NOBODY).stdout
    shared.wait_quiet()


def test_a_job_registers_memory_also_where_hvdd_stands_still_or_is_gone():
    """And the next hvdd counts it."""
    options = {"private": "no", "region-bytes-per-user": "1M"}
    with Daemon(options=options, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("region-refused")
        rank = daemon.rank(user=NOBODY, environment={"HVD_FOREIGN_MEMORY": "never"})
        assert rank.try_open("theirs", 0, 1).ok
        with stopped(daemon.pid):
            assert rank.ask("alloc", bytes=600 << 10)["status"] == Status.OK
        daemon.kill()
        assert rank.ask("alloc", bytes=300 << 10)["status"] == Status.OK
        daemon.start()
        wait_until(daemon.jobs, "the engine to come back")
        refusal = rank.ask("alloc", bytes=300 << 10)
        assert refusal["status"] == Status.ERR_LIMIT and f"{1200 << 10} bytes of shared memory" in refusal["text"], refusal
        assert rank.ask("alloc", bytes=100 << 10)["status"] == Status.OK
