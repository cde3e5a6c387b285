# SPDX-License-Identifier: Apache-2.0
"""Ordinary memory that the engine reads and writes by address, and adopted memory: vanishing buffers, dying trainers,
forks, early closes. An op fails with one sentence on every rank, and what is not concerned goes on."""
import os
import random
import re
import signal
import time

import pytest

from hvt import Daemon, Status, arith, check_prompt, procs, sanitized
from hvt.job import Job

DEADLINE_NS = 100_000_000
FLOATS = 16 << 20  # 64 MiB
ALWAYS = {"HVD_FOREIGN_MEMORY": "always"}

pytestmark = pytest.mark.skipif(not procs.may_be_entered(), reason="the kernel does not let the engine into other processes")


def submit(job: Job, number: int, name: str, **more) -> int:
    return job.ranks[number].submit("allreduce", name, dtype="float32", **({"dims": [FLOATS], "in_place": True} | more))


@pytest.mark.parametrize("side", ["in", "out"])
def test_a_buffer_that_is_gone_fails_the_op_on_every_rank(daemon, side):
    daemon.allow("memory-gone")
    job = Job(daemon, 3, environment=ALWAYS)
    ops = [submit(job, number, "w", dims=[100_000], in_place=False) for number in (0, 1)]
    assert job.ranks[1].ask("unmap", op=ops[1], side=side)["status"] == Status.OK
    began_ns = time.monotonic_ns()
    ops.append(submit(job, 2, "w", dims=[100_000], in_place=False))
    outcomes = [rank.outcome(op, want_output=False) for rank, op in zip(job.ranks, ops)]
    for outcome in outcomes:
        assert outcome.status == Status.ERR_INVALID and outcome.culprit == 1, outcome
        check_prompt("the op failed", outcome.at_ns - began_ns, DEADLINE_NS)
        assert re.search(rf"allreduce 'w': the {side}put of rank 1 \(pid {job.ranks[1].pid}\) could not be "
                         r"(read|written) at address 0x[0-9a-f]+: Bad address", outcome.text), outcome.text
    assert len({outcome.text for outcome in outcomes}) == 1
    job.check_usable()
    for outcome in job.run("allreduce", dtype="float32", dims=[100_000]):
        assert outcome.ok, outcome


def test_buffers_unmapped_at_random_moments_fail_or_succeed_alike(daemon):
    daemon.allow("memory-gone")
    job = Job(daemon, 2, environment=ALWAYS)
    source = random.Random(4)
    seen = set()
    for turn in range(25):
        ops = [submit(job, number, f"w{turn}", dims=[4 << 20]) for number in (0, 1)]
        time.sleep(source.uniform(0, 0.02))  # not a wait: the point in time is what is random
        job.ranks[1].ask("unmap", op=ops[1], side="in")
        outcomes = [rank.outcome(op, want_output=False) for rank, op in zip(job.ranks, ops)]
        assert len({outcome.status for outcome in outcomes}) == 1, outcomes
        assert outcomes[0].status in (Status.OK, Status.ERR_INVALID), outcomes[0]
        seen.add(outcomes[0].status)
    assert Status.ERR_INVALID in seen
    job.check_usable()


@pytest.mark.parametrize("turn", range(8 if sanitized() else 20))
@pytest.mark.parametrize("memory", ["malloc", "adopted"])
def test_a_trainer_killed_at_a_random_moment_is_named_in_time(daemon, memory, turn):
    """The barrier behind the op must not wait for it longer than the promise."""
    daemon.allow("rank-lost")
    source = random.Random(f"20261123 {memory} {turn}")
    size = source.choice((2, 3))
    job = Job(daemon, size, environment=ALWAYS)
    ops = [submit(job, number, "big", memory=memory) for number in range(size)]
    after = job.ranks[0].submit("barrier", "after")
    job.ranks[0].post_wait(after, 20)
    victim = size - 1
    time.sleep(source.uniform(0, 0.06))  # not a wait: the point in time is what is random
    at_ns = job.ranks[victim].kill()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == victim, outcome
    check_prompt("the barrier's end was told", outcome.at_ns - at_ns, DEADLINE_NS)
    for number in range(victim):
        outcome = job.ranks[number].wait(ops[number], 20)
        assert outcome.status in (Status.OK, Status.ERR_RANK_LOST), outcome
        if outcome.status == Status.ERR_RANK_LOST:
            assert outcome.culprit == victim and "SIGKILL" in outcome.text, outcome
            assert str(job.ranks[victim].pid) in outcome.text, outcome.text


def test_a_trainer_killed_while_its_memory_is_moved_fails_the_op_soon(daemon):
    """A stopped clock would be enough if the op went on; it ends because the memory is gone."""
    daemon.allow("rank-lost")
    job = Job(daemon, 2, environment=ALWAYS)
    ops = [submit(job, number, "big", dims=[128 << 20]) for number in (0, 1)]
    job.ranks[0].post_wait(ops[0], 20)
    at_ns = job.ranks[1].kill()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 1, outcome
    assert f"rank 1 (pid {job.ranks[1].pid}) was killed by signal {int(signal.SIGKILL)} (SIGKILL)" in outcome.text
    check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)


def test_a_large_trainer_that_is_gone_for_readers_but_not_yet_for_the_kernel_is_named(daemon):
    """Its memory cannot be read any more long before the process is a zombie: some 70 ms a GiB."""
    if procs.available_bytes() < 4 << 30 or sanitized():
        pytest.skip("needs 2 GiB of memory to spare, without a sanitizer's shadow")
    daemon.allow("rank-lost")
    job = Job(daemon, 2, environment=ALWAYS)
    assert job.ranks[1].ask("fill", bytes=1 << 30)["status"] == Status.OK
    ops = [submit(job, number, "big", dims=[64 << 20]) for number in (0, 1)]
    job.ranks[0].post_wait(ops[0], 20)
    at_ns = job.ranks[1].kill()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and "SIGKILL" in outcome.text, outcome
    check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)


def test_a_fork_in_between_changes_nothing(daemon):
    job = Job(daemon, 2, environment=ALWAYS)
    row = arith.DTYPES["float32"]
    inputs = [arith.pack(row, [rank + 1.5] * 20_000) for rank in range(2)]
    children = []
    try:
        for memory in ("malloc", "adopted"):
            ops = [job.ranks[0].submit("allreduce", memory, dtype="float32", dims=[20_000], data=inputs[0],
                                       memory=memory, in_place=True)]
            children.append(job.ranks[0].ask("hold")["pid"])
            ops.append(job.ranks[1].submit("allreduce", memory, dtype="float32", dims=[20_000], data=inputs[1],
                                           memory=memory, in_place=True))
            children.append(job.ranks[1].ask("hold")["pid"])
            for rank, op in zip(job.ranks, ops):
                outcome = rank.outcome(op)
                assert outcome.ok and outcome.data == arith.allreduce(row, "sum", inputs), outcome.status
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_a_rank_that_closes_meanwhile_gets_its_memory_back(daemon):
    """hvd_close returns when nobody writes to the memory any more: the rank fills its freed buffers at once."""
    daemon.allow("rank-left")
    for turn in range(10):
        job = Job(daemon, 2, name=f"close{turn}", environment=ALWAYS)
        ops = [submit(job, number, "big") for number in (0, 1)]
        job.ranks[1].post("close", session=0)
        job.ranks[1].post("fill", bytes=64 << 20)
        assert job.ranks[1].collect()["status"] == Status.OK
        assert job.ranks[1].collect()["status"] == Status.OK
        outcome = job.ranks[0].outcome(ops[0], want_output=False)
        assert outcome.status in (Status.OK, Status.ERR_RANK_LEFT), outcome
        assert outcome.ok or "closed its session" in outcome.text
        for rank in job.ranks:
            rank.stop()
            daemon.ranks.remove(rank)


def test_the_job_may_end_with_such_an_op_under_way(daemon):
    daemon.allow("rank-lost", "rank-ended", "job-stopped")
    job = Job(daemon, 2, environment=ALWAYS)
    ops = [submit(job, number, "big") for number in (0, 1)]
    daemon.ctl.run("job", "stop", job.name)
    for rank, op in zip(job.ranks, ops):
        outcome = rank.wait(op, 20)
        assert outcome.status in (Status.OK, Status.ERR_JOB_STOPPED, Status.ERR_RANK_LOST,
                                  Status.ERR_ENGINE_LOST), outcome
