# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of an engine: its clients hear ENGINE_LOST within 100 ms, the other job hears nothing."""
import contextlib
import os
import re
import signal
import time

import pytest

from hvt import Daemon, Status, check_prompt, procs, sanitized, scaled, stopped, wait_until, wire
from hvt.job import Job

DEADLINE_NS = 100_000_000
SILENCE_NS = 5_000_000_000  # engine-silence


def kill_engine(job: Job, number: int = signal.SIGKILL) -> int:
    pid = job.daemon.engine_of(job.name)
    at_ns = time.monotonic_ns()
    os.kill(pid, number)
    job.daemon.allow("engine-killed", "engine-exited", "engine-ended", "engine-lost")
    return at_ns


def check_lost(outcome, at_ns: int) -> None:
    assert outcome.status == Status.ERR_ENGINE_LOST, outcome
    assert outcome.text
    check_prompt("the client learned of it", outcome.at_ns - at_ns, DEADLINE_NS)


def test_a_waiting_op_fails_within_the_deadline_and_the_other_job_goes_on(daemon):
    job, other = Job(daemon, 3), Job(daemon, 2)
    ops = [rank.submit("barrier", "b") for rank in job.ranks[:2]]
    for rank, op in zip(job.ranks, ops):
        rank.post_wait(op)
    at_ns = kill_engine(job)
    for rank in job.ranks[:2]:
        check_lost(rank.collect_outcome(), at_ns)
    wait_until(lambda: job.ranks[2].state().status == Status.ERR_ENGINE_LOST, "the idle rank to hear of it")
    assert job.ranks[2].try_submit("barrier", "later").status == Status.ERR_ENGINE_LOST
    other.check_usable()


def test_an_executing_op_fails_within_the_deadline(daemon):
    job = Job(daemon, 2)
    ops = [rank.submit("allreduce", "big", dtype="float32", dims=[64 << 20], memory="shared", in_place=True)
           for rank in job.ranks]
    job.ranks[0].post_wait(ops[0])
    at_ns = kill_engine(job)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status in (Status.OK, Status.ERR_ENGINE_LOST)
    if not outcome.ok:
        check_lost(outcome, at_ns)


def test_an_engine_that_has_much_memory_to_give_back_is_missed_as_soon(daemon):
    job = Job(daemon, 2)
    for rank in job.ranks:
        assert rank.ask("alloc", bytes=1 << 30)["status"] == Status.OK
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    at_ns = kill_engine(job)
    check_lost(job.ranks[0].collect_outcome(), at_ns)


def test_a_finished_op_stays_finished(daemon):
    job = Job(daemon, 2)
    ops = [rank.submit("barrier", "b") for rank in job.ranks]
    assert job.ranks[0].wait(ops[0]).ok
    kill_engine(job)
    wait_until(lambda: job.ranks[1].state().status == Status.ERR_ENGINE_LOST, "rank 1 to hear of it")
    assert job.ranks[1].wait(ops[1]).ok, "a completion that was in the ring was lost"
    assert job.ranks[0].wait(ops[0]).ok


def test_the_ranks_can_open_again_at_once(daemon):
    job = Job(daemon, 2)
    kill_engine(job)
    for rank in job.ranks:
        wait_until(lambda who=rank: who.state().status == Status.ERR_ENGINE_LOST, "the rank to hear of it")
        rank.close()
    for number, rank in enumerate(job.ranks):
        rank.open(job.name, number, 2)
    job.check_usable()


def test_closing_after_the_engine_died_is_quick_and_clean(daemon):
    job = Job(daemon, 1)
    job.ranks[0].ask("alloc", bytes=1 << 20)
    kill_engine(job)
    began_ns = time.monotonic_ns()
    job.ranks[0].ask("close", session=0)
    check_prompt("hvd_close was over", time.monotonic_ns() - began_ns, 1_500_000_000)


def test_the_event_descriptor_tells_of_it(daemon):
    job = Job(daemon, 1)
    assert not job.ranks[0].ask("event", timeout_ms=0)["readable"]
    job.ranks[0].post("event", timeout_ms=int(scaled(5) * 1000))
    at_ns = kill_engine(job)
    reply = job.ranks[0].collect()
    assert reply["readable"], reply
    check_prompt("the descriptor became readable", reply["at_ns"] - at_ns, DEADLINE_NS)


def test_a_stopped_engine_is_named_by_the_daemon_and_does_not_stop_it(daemon):
    daemon.allow("engine-silent")
    job, other = Job(daemon, 2), Job(daemon, 2)
    pid = job.daemon.engine_of(job.name)
    os.kill(pid, signal.SIGSTOP)
    try:
        other.check_usable()
        began_ns = time.monotonic_ns()
        answer = daemon.ctl.json("ranks", job.name)
        check_prompt("hvdd answered without the engine", time.monotonic_ns() - began_ns, 1_100_000_000)
        assert not answer["ranks"] and "engine" in answer["note"], answer
        assert {row["job"] for row in daemon.jobs()} == {job.name, other.name}
    finally:
        os.kill(pid, signal.SIGCONT)
    job.check_usable()


def test_an_engine_that_stands_still_is_said_to_be_silent_killed_and_missed(daemon):
    """Its ranks wait, with a session that looks well; the other job hears nothing."""
    daemon.allow("engine-silent", "engine-killed", "engine-ended")
    job, other = Job(daemon, 3), Job(daemon, 2)
    ops = [rank.submit("barrier", "b") for rank in job.ranks[:2]]
    for rank, op in zip(job.ranks, ops):
        rank.post_wait(op, 60)
    with stopped(job.daemon.engine_of(job.name)):
        began_ns = time.monotonic_ns()
        daemon.expect_line("engine-silent", job.name)
        check_prompt("the silence was noticed", time.monotonic_ns() - began_ns, 3_100_000_000)
        assert {row["job"]: row["state"] for row in daemon.jobs()}[job.name] == "silent"
        job.ranks[2].post("alloc", bytes=1 << 20)
        for rank in job.ranks[:2]:
            outcome = rank.collect_outcome()
            assert outcome.status == Status.ERR_ENGINE_LOST, outcome
            check_prompt("the engine was killed and missed", outcome.at_ns - began_ns - SILENCE_NS, 1_100_000_000)
        assert job.ranks[2].collect()["status"] == Status.ERR_ENGINE_LOST, "memory that the engine was told of waits for the same"
    daemon.expect_line("engine-killed", "has not answered for engine-silence")
    other.check_usable()
    for number, rank in enumerate(job.ranks):
        wait_until(lambda who=rank: who.state().status == Status.ERR_ENGINE_LOST, "the rank to hear of it")
        rank.close()
        rank.open(job.name, number, 3)
    job.check_usable()


def test_a_daemon_that_stood_still_itself_blames_no_engine(daemon):
    job = Job(daemon, 2)
    pid = job.daemon.engine_of(job.name)
    with stopped(pid):
        with stopped(daemon.pid):
            time.sleep(6.5)  # not a wait: what passes is the silence that is allowed
        time.sleep(0.5)  # nor this: hvdd looks
    assert job.daemon.engine_of(job.name) == pid
    job.check_usable()


# How a rank waits: for a peer in a slot, small or medium, or for the engine.
WAYS = {"small": {"kind": "allreduce", "name": "x", "dtype": "int32", "reduce_op": "sum", "dims": [2]},
        "medium": {"kind": "allreduce", "name": "x", "dtype": "int32", "reduce_op": "sum", "dims": [50_000], "memory": "shared"},
        "ring": {"kind": "barrier", "name": "x"}}


def start_to_wait(job: Job, way: str) -> None:
    """Ranks 0 and 1 wait for rank 2. The first op of a name takes the ring; after some rounds the name has a slot."""
    said = dict(WAYS[way])
    kind, name = said.pop("kind"), said.pop("name")
    for _ in range(0 if way == "ring" else 20):
        assert all(outcome.ok for outcome in job.run(kind, name=name, **said))
    for rank in job.ranks[:2]:
        rank.post_wait(rank.submit(kind, name, **said), 120)


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_stands_still_without_a_daemon_is_killed_by_its_ranks(daemon, way):
    job = Job(daemon, 3)
    pid = job.daemon.engine_of(job.name)
    start_to_wait(job, way)
    daemon.kill()
    with stopped(pid):
        began_ns = time.monotonic_ns()
        for rank in job.ranks[:2]:
            outcome = rank.collect_outcome()
            assert outcome.status == Status.ERR_ENGINE_LOST, outcome
            assert f"pid {pid}" in outcome.text and "had not moved for" in outcome.text, outcome
            check_prompt("the engine was missed", outcome.at_ns - began_ns - SILENCE_NS, 2_250_000_000)
            assert len(rank.log()) == 1
    wait_until(lambda: procs.state(pid) in "XZ", "the engine to be killed")
    daemon.start()
    wait_until(lambda: job.ranks[2].state().status == Status.ERR_ENGINE_LOST, "the rank that did not wait to hear of it")
    for number, rank in enumerate(job.ranks):
        rank.close()
        rank.open(job.name, number, 3)
    job.check_usable()


def test_a_reloaded_engine_silence_counts_for_ranks_that_wait(daemon):
    job = Job(daemon, 3)
    pid = job.daemon.engine_of(job.name)
    start_to_wait(job, "ring")
    daemon.config_path.write_text("engine-silence = 1s\n", encoding="utf-8")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.expect_line("option-changed", "engine-silence: 5s -> 1s")
    assert job.daemon.engine_of(job.name) == pid  # and it has read what hvdd said before it asked for this
    daemon.kill()
    with stopped(pid):
        outcome = job.ranks[0].collect_outcome()
        # After 3 s, by the clock of the rank that looks first; as it was before the reload, after 7.
        found = re.search(r"had not moved for (\d+) s", outcome.text)
        assert outcome.status == Status.ERR_ENGINE_LOST and found and int(found[1]) in (2, 3, 4), outcome
    daemon.start()


def check_nothing_is_lost(job: Job) -> None:
    """The two that wait go on to wait, and get what they wait for."""
    time.sleep(scaled(0.5))  # not a wait: they look
    assert not any(rank.has_reply() for rank in job.ranks[:2])
    job.ranks[2].post_wait(job.ranks[2].submit("barrier", "x"))
    for rank in job.ranks:
        outcome = rank.collect_outcome()
        assert outcome.ok, outcome
    job.check_usable()


def test_an_engine_with_nothing_to_do_is_not_missed_while_the_daemon_stands_still(daemon):
    job = Job(daemon, 3)
    start_to_wait(job, "ring")
    with stopped(daemon.pid):
        time.sleep(8.5)  # not a wait: what passes is more than the engine may stand still
    check_nothing_is_lost(job)


@pytest.mark.parametrize("engine_too", [False, True])
def test_trainers_that_stood_still_themselves_miss_no_engine(daemon, engine_too):
    job = Job(daemon, 3)
    pid = job.daemon.engine_of(job.name)
    start_to_wait(job, "ring")
    daemon.kill()
    with contextlib.ExitStack() as stack:
        for stop in [rank.pid for rank in job.ranks[:2]] + ([pid] if engine_too else []):
            stack.enter_context(stopped(stop))
        time.sleep(10)  # not a wait: what passes is more than the engine may stand still
    check_nothing_is_lost(job)
    daemon.start()


def test_an_engine_that_does_not_read_its_link_is_killed_and_missed():
    """What hvdd has for it soon fits no socket any more: 9 attaches with 60 KB of settings each."""
    with Daemon(options={"engine-silence": "0"}) as daemon:
        daemon.allow("engine-killed", "engine-ended", "attach-refused", "no-engine")
        stop_reading(daemon)


def stop_reading(daemon) -> None:
    rank, other = daemon.rank(), Job(daemon, 2)
    rank.open("stuck", 0, 10)
    op = rank.submit("barrier", "b")
    rank.post_wait(op, 20)
    engine = daemon.engine_of("stuck")
    settings = [(f"HVD_X{number}", "v" * 1000) for number in range(60)]
    with stopped(engine), contextlib.ExitStack() as stack:
        began_ns = time.monotonic_ns()
        for number in range(1, 10):
            with daemon.as_trainer():
                raw = stack.enter_context(wire.Raw(daemon.attach_path))
            raw.send(wire.attach_request("stuck", number, 10, settings=settings))
        outcome = rank.collect_outcome()
        assert outcome.status == Status.ERR_ENGINE_LOST, outcome
        check_prompt("the engine was killed and missed", outcome.at_ns - began_ns, 5_100_000_000)
    daemon.expect_line("engine-killed", "has not read its link for 5 s")
    other.check_usable()


@pytest.mark.skipif(bool(sanitized()), reason="takes 9 s in any build")
def test_a_minute_in_which_everything_stood_still_is_not_held_against_the_engine(daemon):
    """As when the host stops a virtual machine: the trainer wakes up first, long after its deadline of 8 s."""
    job = Job(daemon, 1)
    pid = job.ranks[0].pid
    with stopped(job.daemon.engine_of(job.name)), stopped(daemon.pid):
        job.ranks[0].post("alloc", bytes=1 << 20)
        wait_until(lambda: procs.memfds(pid), "the region that the engine is told of")
        with stopped(pid):
            time.sleep(9)  # not a wait: what passes is the deadline
        time.sleep(0.3)  # nor this: the trainer looks, and the engine has not answered
        assert not job.ranks[0].has_reply()
    assert job.ranks[0].collect()["status"] == Status.OK
    job.check_usable()
