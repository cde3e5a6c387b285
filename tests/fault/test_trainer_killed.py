# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a trainer in every state of its op: the peers learn rank, pid and signal within 100 ms, others nothing."""
import os
import re
import signal
import time

import pytest

from hvt import Daemon, Status, arith, check_prompt, procs, program, sanitized, scaled, wait_until
from hvt.job import Job
from hvt.launcher import Launcher

DEADLINE_NS = 100_000_000
NEVER_NS = 1_000_000_000  # for the end of a process that never opened
INT32 = arith.DTYPES["int32"]


@pytest.fixture
def bystander(daemon):
    """A second job that works all the time and must never notice anything."""
    job = Job(daemon, 2, name="bystander")
    for rank in job.ranks:
        rank.post("loop", name="steady", for_ms=int(scaled(60) * 1000), elements=64, until_stdin=True)
    yield job
    for rank in job.ranks:
        rank.post("stop")
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > 0, reply
        assert rank.collect()["status"] == Status.OK
    job.check_usable()


def check_told(outcome, killed_at_ns: int, rank: int, pid: int, number: int = signal.SIGKILL) -> None:
    assert outcome.status == Status.ERR_RANK_LOST, outcome
    assert outcome.culprit == rank
    assert re.search(rf"\brank {rank}\b", outcome.text), outcome.text
    assert str(pid) in outcome.text
    assert f"signal {number}" in outcome.text and signal.Signals(number).name in outcome.text, outcome.text
    check_prompt("the peer learned of it", outcome.at_ns - killed_at_ns, DEADLINE_NS)


def lost(daemon: Daemon) -> None:
    daemon.expect_line("rank-lost", "SIGKILL")


def test_killed_after_submitting_while_it_waits_for_a_peer(daemon, bystander):
    job = Job(daemon, 3)
    first = job.ranks[1].submit("allreduce", "w", dtype="int32", dims=[4])
    victim = job.ranks[2].submit("allreduce", "w", dtype="int32", dims=[4])
    assert job.ranks[2].test(victim).status == Status.INPROGRESS
    job.ranks[1].post_wait(first)
    at_ns = job.ranks[2].kill()
    check_told(job.ranks[1].collect_outcome(), at_ns, 2, job.ranks[2].pid)
    late = job.ranks[0].submit("allreduce", "w", dtype="int32", dims=[4])
    outcome = job.ranks[0].outcome(late)
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 2
    assert job.ranks[0].state().status == Status.ERR_RANK_LOST
    lost(daemon)


def test_killed_before_submitting_while_the_peers_are_ready(daemon, bystander):
    job = Job(daemon, 4)
    ops = [rank.submit("allreduce", "w", dtype="int32", dims=[4]) for rank in job.ranks[:3]]
    for rank, op in zip(job.ranks, ops):
        rank.post_wait(op)
    at_ns = job.ranks[3].kill()
    outcomes = [rank.collect_outcome() for rank in job.ranks[:3]]
    for outcome in outcomes:
        check_told(outcome, at_ns, 3, job.ranks[3].pid)
    assert len({outcome.text for outcome in outcomes}) == 1
    lost(daemon)


def test_killed_while_the_op_is_executed(daemon, bystander):
    """The op's memory outlives the trainer: the survivor gets the result or RANK_LOST, soon, and never a wrong sum."""
    job = Job(daemon, 2)
    count = 64 << 20  # 256 MiB
    big = [rank.submit("allreduce", "big", dtype="float32", dims=[count], memory="shared", in_place=True)
           for rank in job.ranks]
    next_op = job.ranks[0].submit("allreduce", "next", dtype="int32", dims=[4])
    at_ns = job.ranks[1].kill()
    outcome = job.ranks[0].wait(next_op, 10)
    check_told(outcome, at_ns, 1, job.ranks[1].pid)
    outcome = job.ranks[0].wait(big[0], 20)
    assert outcome.status in (Status.OK, Status.ERR_RANK_LOST), outcome
    lost(daemon)


def test_killed_with_a_completion_it_has_not_read(daemon, bystander):
    job = Job(daemon, 2)
    row = arith.pack(INT32, [5])
    ops = [rank.submit("allreduce", "done", dtype="int32", dims=[1], data=row, reduce_op="sum") for rank in job.ranks]
    assert job.ranks[0].wait(ops[0]).ok
    at_ns = job.ranks[1].kill()
    outcome = job.ranks[0].wait(ops[0], want_output=True)
    assert outcome.ok and outcome.data == arith.pack(INT32, [10]), "a finished op was taken back"
    op = job.ranks[0].submit("barrier", "after")
    check_told(job.ranks[0].wait(op), at_ns, 1, job.ranks[1].pid)
    lost(daemon)


def test_a_completion_not_read_when_a_peer_dies_stays_readable(daemon):
    job = Job(daemon, 2)
    row = arith.pack(INT32, [5])
    ops = [rank.submit("allreduce", "done", dtype="int32", dims=[1], data=row, reduce_op="sum") for rank in job.ranks]
    assert job.ranks[1].wait(ops[1]).ok
    job.ranks[1].kill()
    wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "rank 0 to hear of it")
    outcome = job.ranks[0].outcome(ops[0])
    assert outcome.ok and outcome.data == arith.pack(INT32, [10])
    lost(daemon)


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_large_trainer_is_lost_before_the_kernel_has_taken_its_memory_apart(daemon, how):
    """Sockets close after the memory has gone, which takes some 70 ms a GiB."""
    if procs.available_bytes() < 6 << 30 or sanitized():
        pytest.skip("needs 2 GiB of memory to spare, without a sanitizer's shadow")
    job = Job(daemon, 2)
    assert job.ranks[1].ask("fill", bytes=2 << 30)["status"] == Status.OK
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    at_ns = time.monotonic_ns()
    if how == "SIGKILL":
        job.ranks[1].kill()
    else:
        job.ranks[1].post("exit", code=3)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST, outcome
    assert ("SIGKILL" if how == "SIGKILL" else "exited with code 3") in outcome.text
    job.ranks[1].kill_now()
    daemon.expect_line("rank-lost")
    check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)


def test_killed_while_idle(daemon, bystander):
    job = Job(daemon, 2)
    job.check_usable()
    assert not job.ranks[0].ask("event", timeout_ms=0)["readable"]
    job.ranks[0].post("event", timeout_ms=int(scaled(5) * 1000))
    at_ns = job.ranks[1].kill()
    reply, state = job.ranks[0].collect(), job.ranks[0].state()
    while reply["readable"] and state.ok:  # for the ops before, whose ranks had seen them already
        reply, state = job.ranks[0].ask("event", timeout_ms=int(scaled(5) * 1000)), job.ranks[0].state()
    assert reply["readable"], reply
    check_prompt("the idle peer learned of it", reply["at_ns"] - at_ns, DEADLINE_NS)
    assert state.status == Status.ERR_RANK_LOST
    assert str(job.ranks[1].pid) in state.text and "SIGKILL" in state.text
    rows = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
    assert rows[1]["state"] == "lost" and "SIGKILL" in rows[1]["text"]
    lost(daemon)


def test_killed_while_it_waits_for_the_size_of_an_allgather(daemon):
    job = Job(daemon, 3)
    ops = [rank.submit("allgather", "g", dtype="int32", dims=[2]) for rank in job.ranks[:2]]
    job.ranks[0].post_wait(ops[0])
    # Rank 1 does not answer with an output: it is not inside the library. Rank 2's arrival makes the sizes known.
    last = job.ranks[2].submit("allgather", "g", dtype="int32", dims=[2])
    job.ranks[2].post_wait(last)
    at_ns = job.ranks[1].kill()
    for number in (0, 2):
        check_told(job.ranks[number].collect_outcome(), at_ns, 1, job.ranks[1].pid)
    lost(daemon)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL], ids=lambda s: s.name)
def test_every_signal_is_named(daemon, number):
    job = Job(daemon, 2)
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    at_ns = job.ranks[1].kill(number)
    outcome = job.ranks[0].collect_outcome()
    job.ranks[1].kill_now()
    daemon.expect_line("rank-lost", number.name)
    check_told(outcome, at_ns, 1, job.ranks[1].pid, number)


def test_a_trainer_that_exits_without_closing_is_named_with_its_exit_code(daemon):
    job = Job(daemon, 2)
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    at_ns = time.monotonic_ns()
    job.ranks[1].post("exit", code=7)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST
    check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)
    assert str(job.ranks[1].pid) in outcome.text and "exited with code 7" in outcome.text, outcome.text
    job.ranks[1].kill_now()
    daemon.expect_line("rank-lost", "exited")


def check_named_before_it_opens(waiting: str, ends: str, opens: str, *arguments: str) -> None:
    """Rank 1 says `ends` and exits with 0, the others say `opens` and wait for it. `waiting`: the ranks that are told, in order."""
    launcher = Launcher()
    size = len(set(waiting)) + 1
    perf = f'"{program("hvd-perf")}" -o barrier -i 1; '
    perf = f"{perf} code=$?; date +%s%N; {perf if waiting == '00' else ''} exit $code"
    script = f"[ $HVD_RANK = 1 ] && {{ {ends}; exit 0; }}; {opens}; {perf}"
    try:
        done = launcher.run("-np", str(size), "--no-prefix", *arguments, "sh", "-c", script)
        launcher.check_gone()
    finally:
        launcher.sweep()
    told = re.findall(r"rank (\d): barrier: HVD_ERR_RANK_LOST: .*rank 1 \(pid \d+\) exited with code 0 before it had called hvd\.init",
                      done.stderr)
    assert "".join(told) == waiting, done.stderr
    began_ns, told_ns = (int(line) for line in done.stdout.split("\n") if line.isdigit())
    check_prompt("the rank that waited was told", told_ns - began_ns, NEVER_NS)


def test_a_rank_that_exits_with_zero_before_it_opens_is_named_to_those_that_wait():
    """Also when they open again."""
    check_named_before_it_opens("00", "sleep 0.5; date +%s%N", ":")


def test_a_rank_that_exits_with_zero_before_any_other_opens_is_named_to_those_that_come(daemon):
    """Of a hvdd that hvdrun has not started, and that does not know the job yet. Rank 2 comes when rank 0 has been told."""
    opens = "sleep 0.$((3 + 3 * HVD_RANK)); [ $HVD_RANK = 0 ] && date +%s%N || exec >&2"
    check_named_before_it_opens("02", ":", opens, "--address", str(daemon.address))
    daemon.expect_line("rank-lost", "exited with code 0")


def test_a_daemon_that_was_silent_when_a_rank_ended_is_told_again(daemon):
    """It stands still for longer than hvdrun waits, and afterwards does not know the job yet."""
    check_named_before_it_opens("0", f"kill -STOP {daemon.pid}; (sleep 0.5; kill -CONT {daemon.pid}) & :",
                                "sleep 0.8; date +%s%N", "--address", str(daemon.address))
    daemon.expect_line("rank-lost", "exited with code 0")


def test_a_child_that_keeps_the_socket_open_does_not_hide_the_death(daemon):
    job = Job(daemon, 2)
    child = job.ranks[1].ask("hold")["pid"]
    try:
        op = job.ranks[0].submit("barrier", "b")
        job.ranks[0].post_wait(op)
        at_ns = job.ranks[1].kill()
        check_told(job.ranks[0].collect_outcome(), at_ns, 1, job.ranks[1].pid)
        lost(daemon)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_survivors_meet_again_in_the_next_generation(daemon, bystander):
    job = Job(daemon, 3)
    job.ranks[1].kill()
    wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "rank 0 to hear of it")
    for number in (0, 2):
        job.ranks[number].close()
    job.ranks[1] = daemon.rank()
    for number, rank in enumerate(job.ranks):
        rank.open(job.name, number, 3)
    job.check_usable()
    lost(daemon)
