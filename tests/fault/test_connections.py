# SPDX-License-Identifier: Apache-2.0
"""Many connections of one user: they cost that user, and nobody else."""
import contextlib
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hvt import Daemon, Status, as_service, check_prompt, wait_until, wire
from hvt.job import Job
from hvt.zmtp import Zmtp

NOBODY = 65534
SILENT = """
import socket, struct, sys
path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
held = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX, getattr(socket, kind))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 5, 0))  # so long it waits for a place in the queue
    try:
        one.connect(path)
    except OSError as error:  # there was none, or nobody listens any more
        print(type(error).__name__, flush=True)
        break
    held.append(one)
print(len(held), flush=True)
sys.stdin.read()
"""


def few_files(count: int):
    """A preexec function that lowers the limit of descriptors."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


@contextlib.contextmanager
def silent(path: pathlib.Path, kind: str, count: int, uid: int = NOBODY) -> Iterator[subprocess.Popen[str]]:
    """A process of another user, where the test can choose one, that holds `count` silent connections."""
    user = {"user": uid, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen([sys.executable, "-c", SILENT, str(path), kind, str(count)], stdin=subprocess.PIPE, cwd="/",
                          stdout=subprocess.PIPE, text=True, **user) as process:
        try:
            assert process.stdout.readline() == f"{count}\n"
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def service(files: int, **options: str) -> Iterator[Daemon]:
    """A hvdd for all users with so many descriptors."""
    with Daemon(options={"private": "no", "admin-mode": "0666"} | options, folder_mode=0o755, user=as_service(),
                preexec=few_files(files)) as daemon:
        yield daemon


def check_attaches(daemon: Daemon) -> None:
    """Another user's rank comes as soon as ever."""
    rank = daemon.rank()
    began_ns = time.monotonic_ns()
    assert rank.try_open("meanwhile", 0, 1).ok
    check_prompt("the rank attached", time.monotonic_ns() - began_ns, 100_000_000)


def check_answered(daemon: Daemon) -> None:
    """root's hvdctl is answered all the same."""
    began_ns = time.monotonic_ns()
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    check_prompt("hvdctl was answered", time.monotonic_ns() - began_ns, 1_000_000_000)


needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


@needs_two_users
def test_connections_of_one_user_at_the_admin_socket_cost_no_other_user_anything():
    """More connections than hvdd has descriptors."""
    with service(files=64) as daemon:
        job = Job(daemon, 2)
        with silent(daemon.admin_path, "SOCK_STREAM", 100):
            daemon.expect_line("admin-limit", f"uid={NOBODY} ")
            job.check_usable()
            check_answered(daemon)
            check_attaches(daemon)
        job.check_usable()


@needs_two_users
def test_connections_of_several_users_at_the_admin_socket_do_not_lock_root_out():
    """As many as there may be. Silent ones end after two seconds: root is answered before."""
    with service(files=64) as daemon:
        with silent(daemon.admin_path, "SOCK_STREAM", 10), silent(daemon.admin_path, "SOCK_STREAM", 10, NOBODY - 1):
            daemon.expect_line("admin-limit", f"uid={NOBODY} ")
            check_answered(daemon)


def test_the_end_of_descriptors_at_the_admin_socket_is_survived():
    """By the daemon's own user, where it has one: 64 descriptors, and 100 connections that speak ZeroMQ."""
    with Daemon(preexec=few_files(64)) as daemon, contextlib.ExitStack() as stack:
        job = Job(daemon, 2)
        speaking = 0
        for _ in range(100):
            raw = stack.enter_context(Zmtp(daemon.admin_path))
            with contextlib.suppress(ConnectionResetError):
                raw.handshake()
                speaking += 1
        daemon.expect_line("admin-limit", f"uid={os.geteuid()} ")
        assert 0 < speaking <= 64 // 16
        job.check_usable()
        check_attaches(daemon)
        stack.close()
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid


def test_a_connection_that_says_nothing_at_the_admin_socket_is_closed(daemon):
    with Zmtp(daemon.admin_path) as raw:
        raw.socket.recv(4096)  # hvdd's own greeting
        assert raw.socket.recv(1) == b"", "hvdd keeps a silent connection"
    assert daemon.ctl.json("status")


def test_a_connection_that_has_shaken_hands_may_wait(daemon):
    """Longer than a silent one; then it is answered."""
    with Zmtp(daemon.admin_path) as raw, Zmtp(daemon.admin_path) as silent:
        raw.handshake()
        silent.socket.recv(4096)
        assert silent.socket.recv(1) == b""
        raw.message(b"", wire.message((1, wire.PROTOCOL_VERSION), (2, 1), (3, b"")))
        assert raw.frame() == b"" and raw.frame()


@needs_two_users
def test_silent_connections_of_one_user_lock_nobody_else_out():
    """As many as hvdd kept of all users together."""
    with service(files=4096) as daemon:
        daemon.allow("attach-refused")
        job = Job(daemon, 2)
        with silent(daemon.attach_path, "SOCK_SEQPACKET", 256):
            check_attaches(daemon)
            job.check_usable()
            outcome = daemon.rank(user=NOBODY).try_open("theirs", 0, 1)
            assert outcome.status == Status.ERR_DAEMON_LIMIT, outcome
            assert f"256 connections of uid {NOBODY} wait" in outcome.text and "max-pending-per-user" in outcome.text
        wait_until(lambda: daemon.rank(user=NOBODY).try_open("theirs", 0, 1).ok, "attaches to work again", step=0.05)


@needs_two_users
def test_jobs_of_one_user_leave_room_for_those_of_others():
    with Daemon(options={"private": "no", "max-jobs": 4, "max-jobs-per-user": 2}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("attach-refused")
        greedy = daemon.rank(user=NOBODY)
        outcomes = [greedy.try_open(f"job{number}", 0, 2, session=number) for number in range(3)]
        assert [outcome.ok for outcome in outcomes] == [True, True, False]
        assert outcomes[2].status == Status.ERR_DAEMON_LIMIT and "max-jobs-per-user = 2" in outcomes[2].text
        Job(daemon, 2).check_usable()


@needs_two_users
def test_silent_connections_take_no_more_than_their_share_of_few_descriptors():
    with service(files=64) as daemon:
        daemon.allow("attach-refused")
        job = Job(daemon, 2)
        with silent(daemon.attach_path, "SOCK_SEQPACKET", 100):
            check_attaches(daemon)
            assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
            job.check_usable()
        wait_until(lambda: daemon.rank(user=NOBODY).try_open("theirs", 0, 1).ok, "attaches to work again", step=0.05)
