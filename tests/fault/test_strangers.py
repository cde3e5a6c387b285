# SPDX-License-Identifier: Apache-2.0
"""Clients of another user: refused and logged, in a private daemon and at another user's job."""
import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import time

import pytest

from hvt import SERVICE, Daemon, Status, as_service, being, check_prompt, procs, program, stopped, wait_until, wire
from hvt.job import Job
from hvt.rank import open_job
from hvt.zmtp import Zmtp

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


@pytest.fixture(scope="module")
def nobody():
    return pwd.getpwnam("nobody").pw_uid


def test_another_user_is_refused_by_a_private_daemon_and_logged(nobody):
    with Daemon(folder_mode=0o755) as daemon:
        job = Job(daemon, 2, name="mine")
        daemon.address.chmod(0o755)  # so that the refusal is hvdd's own and not the directory's
        daemon.attach_path.chmod(0o777)
        stranger = daemon.rank(user=nobody)
        stranger.ask("log")  # its answer says that the program has started
        began_ns = time.monotonic_ns()
        outcome = stranger.try_open("theirs", 0, 1)
        assert outcome.status == Status.ERR_REFUSED, outcome
        check_prompt("the stranger was refused", time.monotonic_ns() - began_ns, 100_000_000)
        assert str(nobody) in outcome.text
        line = daemon.expect_line("attach-refused")
        assert line.pairs["uid"] == str(nobody)
        assert [row["job"] for row in daemon.jobs()] == ["mine"]
        job.check_usable()


def test_the_private_directory_keeps_others_out_before_any_message(nobody):
    with Daemon(folder_mode=0o755) as daemon:
        outcome = daemon.rank(user=nobody).try_open("theirs", 0, 1, timeout_ms=1000)
        assert outcome.status in (Status.ERR_NO_DAEMON, Status.ERR_REFUSED), outcome
        assert not daemon.jobs()


def test_a_job_that_another_user_has_opened_first_under_the_same_id_is_his_alone(nobody):
    """Ids such as a launcher's "slurm-4711.0" can be guessed: whoever comes first with one has nothing of the other's."""
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("admin-refused", "attach-refused", "rank-lost", "job-stopped", "session-ended", "rank-ended")
        stranger = daemon.rank(user=nobody)
        outcome = stranger.try_open("slurm-4711.0", 1, 7, key="guessed")
        assert outcome.ok, outcome
        mine = Job(daemon, 2, name="slurm-4711.0", key="secret")
        assert stranger.try_open("slurm-4711.0", 0, 2, key="secret", session=1).status == Status.ERR_REFUSED, "his has a key of its own"
        assert sorted((row["job"], row["uid"], row["size"]) for row in daemon.jobs()) == [
            ("slurm-4711.0", 0, 2), ("slurm-4711.0", nobody, 7)]
        mine.check_usable()
        assert len(daemon.ctl.json("ranks", "slurm-4711.0", user=nobody)["ranks"]) == 7
        assert len(daemon.ctl.json("ranks", "slurm-4711.0")["ranks"]) == 2, "root's own"
        assert len(daemon.ctl.json("ranks", "slurm-4711.0", "--user", "nobody")["ranks"]) == 7
        refused = daemon.ctl.run("job", "stop", "slurm-4711.0", "--user", "root", user=nobody)
        assert refused.returncode == 1 and "belongs to another user" in refused.stderr
        assert daemon.ctl.run("job", "stop", "slurm-4711.0", user=nobody).returncode == 0
        wait_until(lambda: stranger.state().status == Status.ERR_JOB_STOPPED, "his own job to stop")
        mine.check_usable()


def test_no_stranger_stands_before_root_in_the_queue_of_its_questions(nobody):
    """root.sock is for root and hvdd's own user; what others do to the queue of admin.sock does not hold up their hvdctl."""
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon, \
            contextlib.ExitStack() as stack:
        roots = daemon.address / "root.sock"
        with being(nobody), socket.socket(socket.AF_UNIX) as theirs, pytest.raises(PermissionError):
            theirs.connect(str(roots))
        with stopped(daemon.gate()):
            with being(nobody):
                fill_queue(daemon.admin_path, stack)
            with socket.socket(socket.AF_UNIX) as mine:
                mine.setblocking(False)
                with pytest.raises(BlockingIOError):
                    mine.connect(str(daemon.admin_path))
                mine.connect(str(roots))
        daemon.admin_path.rename(daemon.address / "elsewhere")
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid, "it asks there"
        assert daemon.ctl.run("status", user=nobody).returncode == 3
        (daemon.address / "elsewhere").rename(daemon.admin_path)
        assert daemon.ctl.json("status", user=nobody)["daemon"]["pid"] == daemon.pid
        roots.unlink()
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid, "as others do, where there is no such socket"


def fill_queue(path, stack):
    """Until there is no place any more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.setblocking(False)
            peer.connect(str(path))


def subscribe(daemon, uid):
    """A connection of that user's that has asked for events."""
    with being(uid):
        peer = Zmtp(daemon.address / "admin.sock")
    peer.subscribe()
    return peer


def next_job(peer):
    """Whose job the next event is about."""
    return peer.event()[3][0].decode()


def test_what_becomes_of_my_job_is_no_event_for_another_user(nobody):
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("rank-lost", "job-stopped", "session-ended", "rank-ended")
        with subscribe(daemon, nobody) as theirs, subscribe(daemon, 0) as roots:
            mine = Job(daemon, 2, name="mine")
            assert next_job(roots) == "mine"
            mine.ranks[1].kill()
            assert next_job(roots) == "mine"
            daemon.rank(user=nobody).open("theirs", 0, 1)
            assert next_job(theirs) == "theirs", "the first one that he hears of"


def test_subscribers_that_never_read_cost_the_gate_little_and_others_nothing(nobody):
    """As many as a user may have, each of which asks again and again, and jobs that come and go."""
    with Daemon(options={"private": "no", "admin-mode": "0666", "engine-linger": "50ms"}, folder_mode=0o755, user=as_service()) as daemon, \
            contextlib.ExitStack() as stack:
        gate, again = daemon.gate(), wire.message((1, 1), (2, 7), (12, b""))
        before = procs.rss_bytes(gate)
        peers = [stack.enter_context(subscribe(daemon, nobody)) for _ in range(30)]
        for peer in peers:
            for _ in range(4):
                peer.message(again)
        rank = daemon.rank(user=nobody)
        for number in range(20):
            rank.open(f"theirs{number}", 0, 1)
            rank.close()
        began_ns = time.monotonic_ns()
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
        check_prompt("root was answered", time.monotonic_ns() - began_ns, 500_000_000)
        assert daemon.gate() == gate and procs.rss_bytes(gate) - before < 16 << 20


def test_a_key_lets_no_other_user_in(nobody):
    """Not even the right one: a job is one user's, and its key keeps that user's other processes out."""
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("attach-refused")
        mine = Job(daemon, 2, name="mine", key="secret")
        stranger = daemon.rank(user=nobody)
        stranger.open("mine", 1, 2, key="secret")
        assert sorted((row["uid"], row["attached"]) for row in daemon.jobs()) == [(0, 2), (nobody, 1)]
        assert daemon.rank().try_open("mine", 1, 2, key="wrong").status == Status.ERR_REFUSED
        mine.check_usable()


QUESTIONS = [["ranks", "mine"], ["top", "mine", "--once"], ["trace", "mine"], ["stalls", "mine"],
             ["timeline", "mine", "stop"], ["job", "stop", "mine"]]


def test_another_user_may_see_that_my_job_runs_and_neither_look_into_it_nor_stop_it(nobody):
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("admin-refused")
        mine = Job(daemon, 2, name="mine")
        waiting = mine.ranks[0].submit("barrier", "private name")
        for question in QUESTIONS:
            done = daemon.ctl.run(*question, user=nobody)
            assert done.returncode == 1 and "belongs to another user" in done.stderr, (question, done)
            assert "private name" not in done.stdout + done.stderr
        wait_until(lambda: daemon.ctl.json("stalls")["stalls"], "the op to be seen waiting")
        assert daemon.ctl.json("stalls", user=nobody)["stalls"] == []
        row, = daemon.ctl.json("jobs", user=nobody)["jobs"]
        assert row["job"] == "mine" and row["uid"] == 0 and row["withheld"] and not row.keys() & {"ops", "bytes", "nodes"}
        row, = daemon.jobs()
        assert not row["withheld"] and row.keys() >= {"ops", "bytes", "nodes"}
        assert mine.ranks[1].outcome(mine.ranks[1].submit("barrier", "private name")).ok
        assert mine.ranks[0].outcome(waiting).ok
        mine.check_usable()


def test_what_another_user_asks_does_not_reach_the_engine_of_my_job(nobody):
    """So no flood of his can hold it up: while it stands still he is answered as always."""
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("admin-refused")
        mine = Job(daemon, 2, name="mine")
        with stopped(daemon.engines()[0]):
            began_ns = time.monotonic_ns()
            assert daemon.ctl.json("jobs", user=nobody)["jobs"]
            assert daemon.ctl.run("stalls", user=nobody).returncode == 0
            assert daemon.ctl.run("ranks", "mine", user=nobody).returncode == 1
            check_prompt("the other user was answered", time.monotonic_ns() - began_ns, 900_000_000)
        mine.check_usable()


def test_another_user_stops_his_own_job_and_not_mine(nobody):
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        mine = Job(daemon, 2, name="mine")
        theirs = daemon.rank(user=nobody)
        theirs.open("theirs", 0, 1)
        assert daemon.ctl.run("job", "stop", "theirs", user=nobody).returncode == 0
        wait_until(lambda: theirs.state().status == Status.ERR_JOB_STOPPED, "the owner's stop to work")
        daemon.allow("job-stopped", "session-ended", "rank-ended")
        mine.check_usable()


SHOUT = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as to:
        to.connect(sys.argv[1])
        to.send(b"garbage")
        to.recv(1)  # of one that has hung up, hvdd says nothing
"""


def test_what_another_user_shouts_does_not_fill_the_log(nobody):
    """And what others do wrong is logged all the same."""
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("attach-refused")
        began = time.monotonic()
        shout = [sys.executable, "-c", SHOUT, str(daemon.attach_path)]
        subprocess.run([*shout, "2000"], user=nobody, check=True, timeout=60, cwd="/")
        with wire.Raw(daemon.attach_path) as raw:
            raw.send(b"garbage")
            raw.wait_closed()
        daemon.expect_line("attach-refused", "uid=0 ")
        theirs = [line for line in daemon.lines("attach-refused") if line.pairs["uid"] == str(nobody)]
        assert 100 <= len(theirs) <= 101 + 10 * (time.monotonic() - began)
        time.sleep(0.2)
        subprocess.run([*shout, "1"], user=nobody, check=True, timeout=60, cwd="/")
        line = daemon.expect_line("attach-refused", "suppressed=")
        assert line.pairs["uid"] == str(nobody) and int(line.pairs["suppressed"]) > 0


def test_what_another_users_job_does_wrong_does_not_fill_the_log(nobody):
    """Its engine writes there."""
    with Daemon(options={"private": "no", "region-limit": "64K"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("region-refused")
        began = time.monotonic()
        rank = daemon.rank(user=nobody)
        rank.open("theirs", 0, 1)
        for _ in range(500):
            assert rank.ask("alloc", bytes=128 << 10)["status"] == Status.ERR_LIMIT
        time.sleep(0.2)
        assert rank.ask("alloc", bytes=128 << 10)["status"] == Status.ERR_LIMIT
        line = daemon.expect_line("region-refused", "suppressed=")
        assert int(line.pairs["suppressed"]) > 0
        assert 100 <= len(daemon.lines("region-refused")) <= 101 + 10 * (time.monotonic() - began)


COMMANDS = "\x7f\u009b2J\u202e\u2066"  # to a terminal: DEL, CSI in one character, text from right to left, and isolated


def test_no_name_of_another_user_commands_the_terminal_of_root(nobody, tmp_path):
    """In tables, JSON, the log and a timeline; JSON has the very name all the same."""
    options = {"private": "no", "stall-warn": "100ms"}
    with Daemon(options=options, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("op-stalled", "stall")
        theirs = [daemon.rank(user=nobody) for _ in range(2)]
        open_job(theirs, "theirs")
        assert daemon.ctl.run("timeline", "theirs", "start", str(tmp_path / "t.json")).returncode == 0
        waiting = theirs[0].submit("barrier", f"a{COMMANDS}b")
        wait_until(lambda: "2J" in daemon.log_text(), "the log to name the op")
        shown = [daemon.ctl.run(*words).stdout for words in (["stalls"], ["stalls", "--json"], ["trace", "theirs"],
                                                             ["trace", "theirs", "--json"])]
        assert json.loads(shown[1])["stalls"][0]["tensor"] == f"a{COMMANDS}b"
        assert theirs[1].outcome(theirs[1].submit("barrier", f"a{COMMANDS}b")).ok
        assert theirs[0].outcome(waiting).ok
        assert daemon.ctl.run("timeline", "theirs", "stop").returncode == 0
        shown += [daemon.log_text(), (tmp_path / "t.json").read_text(encoding="utf-8")]
        assert f"a{COMMANDS}b" in {row.get("args", {}).get("name") for row in json.loads(shown[-1])}
        for text in shown:
            assert "2J" in text and not set(text) & set(COMMANDS) - {"2", "J"}, text


def refuse_first(nobody: int, message: bytes) -> None:
    """Another user says it first, and nothing comes of it."""
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service()) as daemon:
        code = ("import socket,sys; s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); "
                "s.send(bytes.fromhex(sys.argv[2])); s.settimeout(10); s.recv(65536)")
        subprocess.run(["/usr/bin/python3", "-c", code, str(daemon.attach_path), message.hex()], user=nobody, check=True,
                       timeout=20, env={})
        line = daemon.expect_line("attach-refused")
        assert line.pairs["uid"] == str(nobody)
        assert not daemon.jobs() and not daemon.ctl.json("gpus")["gpus"]


def test_an_engine_hello_from_another_user_is_refused(nobody):
    refuse_first(nobody, wire.field(wire.ENGINE_HELLO, wire.message(
        (1, wire.PROTOCOL_VERSION), (2, "ghost"), (3, 1), (4, 2), (5, 0), (6, 1))))


def test_a_gpu_return_from_another_user_is_refused(nobody):
    refuse_first(nobody, wire.field(wire.GPU_RETURN, wire.message(
        (1, wire.PROTOCOL_VERSION), (2, "ghost"), (3, 0), (4, bytes(16)), (5, 1))))


def test_root_is_no_user_for_a_daemon_of_all_users(tmp_path):
    """Its engines would move the memory of whatever a trainer executes while its op is in flight."""
    for options in (["--private=no"], []):  # auto, too, means a daemon for all users when root starts it
        done = subprocess.run([program("hvdd"), f"--runtime-dir={tmp_path}/run", "--config=/dev/null", *options],
                              capture_output=True, text=True, check=False, timeout=20)
        assert done.returncode == 2
        assert "does not run as root" in done.stderr and "systemctl start hvdd" in done.stderr
        assert "--private=yes" in done.stderr
        assert not (tmp_path / "run").exists()


def test_a_service_has_a_user_of_its_own_and_so_have_its_engines():
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service()) as daemon:
        job = Job(daemon, 2)
        for pid in (daemon.pid, *daemon.engines()):
            assert os.stat(f"/proc/{pid}").st_uid == SERVICE
        job.check_usable()
