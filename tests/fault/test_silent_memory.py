# SPDX-License-Identifier: Apache-2.0
"""Ordinary memory behind a userfaultfd that nobody serves: it does not answer the engine, perhaps for ever. The op that it
belongs to fails on every rank, and nothing else waits for it."""
import ctypes
import json
import os
import re
import subprocess
import time

import pytest

from hvt import Daemon, Status, check_prompt, procs, scaled, wait_until
from hvt.job import Job

DEADLINE_NS = 100_000_000
STOPPED_NS = 1_000_000_000
FLOATS = 32768  # 128 KiB: the first half is there
SECONDS = 1


def _is_served() -> bool:
    """Whether this user may make the kernel itself wait: engines are in the kernel when they read a rank's memory."""
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(323 if os.uname().machine == "x86_64" else 282, os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


pytestmark = pytest.mark.skipif(not _is_served(), reason="no userfaultfd for faults of the kernel")


def job_of(daemon, size: int = 2, seconds: float = SECONDS, **more) -> Job:
    daemon.allow("memory-silent")
    return Job(daemon, size, environment={"HVD_FOREIGN_MEMORY": "always", "HVD_MEMORY_TIMEOUT_SECONDS": str(seconds)}, **more)


def submit(job: Job, name: str, silent: str = "in", kind: str = "allreduce", **more) -> list[int]:
    """The last rank's memory does not answer."""
    ops = [rank.submit(kind, name, **({"dtype": "float32", "dims": [FLOATS]} | more)) for rank in job.ranks[:-1]]
    return ops + [job.ranks[-1].submit(kind, name, silent=silent, **({"dtype": "float32", "dims": [FLOATS]} | more))]


def stalls(job: Job) -> list:
    return job.daemon.ctl.json("stalls", job.name)["stalls"]


def wait_for_silence(job: Job, count: int = 1) -> list:
    return wait_until(lambda: len(rows := stalls(job)) >= count and rows, "the op to be listed")


def check_failed(job: Job, ops: list[int], began_ns: int, pattern: str) -> None:
    """The ops are not freed: their memory is looked at later."""
    texts = set()
    for rank, op in zip(job.ranks, ops):
        outcome = rank.wait(op)
        assert outcome.status == Status.ERR_STALLED and outcome.culprit == job.size - 1, outcome
        assert re.fullmatch(pattern, outcome.text), outcome.text
        assert outcome.at_ns - began_ns >= SECONDS * 10**9
        check_prompt("the op failed", outcome.at_ns - began_ns - SECONDS * 10**9, DEADLINE_NS)
        texts.add(outcome.text)
    assert len(texts) == 1


def check_memory_is_moved(job: Job, name: str, **more) -> None:
    """Other ordinary memory."""
    for outcome in job.run("allreduce", name=name, dtype="float32", dims=[FLOATS], **more):
        assert outcome.ok, outcome


def sentence(job: Job, kind: str, side: str) -> str:
    return (rf"{kind} '.*': the {side}put of rank {job.size - 1} \(pid {job.ranks[-1].pid}\) could not be (read|written) at "
            r"address 0x[0-9a-f]+: its memory has not answered for 1\.\d s \(HVD_MEMORY_TIMEOUT_SECONDS\); .*")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", ["in", "out"])
def test_memory_that_does_not_answer_fails_its_op_on_every_rank_and_nothing_else(side, threads):
    with Daemon(options={"threads": str(threads)}) as daemon:
        job = job_of(daemon, 3)
        began_ns = time.monotonic_ns()
        ops = submit(job, "w", side)
        row = wait_for_silence(job)[0]
        assert (row["tensor"], row["op"], row["ready"]) == ("w", "allreduce", [0, 1])
        assert [(missing["rank"], missing["pid"]) for missing in row["missing"]] == [(2, job.ranks[2].pid)]
        assert re.fullmatch(rf"its memory, which does not answer while the op executes \({side}put, 0x[0-9a-f]+\)",
                            row["missing"][0]["waits_in"]), row
        job.check_usable()
        check_memory_is_moved(job, "other")
        assert [row["tensor"] for row in stalls(job)] == ["w"]
        check_failed(job, ops, began_ns, sentence(job, "allreduce", side))
        assert not stalls(job)
        daemon.expect_line("memory-silent")
        check_memory_is_moved(job, "after")
        job.check_usable()
        assert job.ranks[2].ask("answer")["written"] == 0
        check_memory_is_moved(job, "w")


@pytest.mark.parametrize("kind,more", [
    ("broadcast", {"root": 1}), ("allgather", {"out_dims": [2 * FLOATS]}), ("reducescatter", {"out_dims": [FLOATS // 2]}),
    ("alltoall", {"out_dims": [FLOATS]}), ("allreduce", {"reduce_op": "adasum"}),
    ("allreduce", {"out_memory": "shared"}), ("alltoall", {"out_dims": [FLOATS], "out_memory": "shared"})])
def test_every_kind_of_op_fails_alike(daemon, kind, more):
    job = job_of(daemon)
    began_ns = time.monotonic_ns()
    ops = submit(job, "w", kind=kind, **more)
    check_failed(job, ops, began_ns, sentence(job, kind, "in"))
    for rank, op in zip(job.ranks, ops):  # a transfer may still come back, to memory that is something else by then
        rank.free(op)
    job.ranks[1].ask("answer")
    job.check_usable()
    check_memory_is_moved(job, "w", memory="shared")


def test_memory_that_answers_late_is_no_failure(daemon):
    job = job_of(daemon, seconds=60)
    ops = submit(job, "w", data=b"\0\0\x80\x3f" * FLOATS)
    wait_for_silence(job)
    job.ranks[1].ask("answer")
    for rank, op in zip(job.ranks, ops):
        outcome = rank.outcome(op)
        assert outcome.ok, outcome
        values = memoryview(outcome.data).cast("f")
        assert set(values[:FLOATS // 2]) == {2.0} and set(values[FLOATS // 2 + 1024:-1024]) == {1.0}
    assert not stalls(job)
    check_memory_is_moved(job, "after")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stopped_job_does_not_wait_for_memory(threads):
    with Daemon(options={"threads": str(threads)}) as daemon:
        daemon.allow("job-stopped", "rank-ended", "rank-lost")
        job = job_of(daemon, seconds=60)
        ops = [op for number in range(5) for op in submit(job, f"w{number}")]
        wait_until(lambda: stalls(job), "an op to be listed")  # how many depends on which go together
        at_ns = time.monotonic_ns()
        daemon.ctl.run("job", "stop", job.name)
        for number, op in enumerate(ops):
            outcome = job.ranks[number % 2].wait(op)
            assert outcome.status == Status.ERR_JOB_STOPPED, outcome
            check_prompt("the job was stopped", outcome.at_ns - at_ns, STOPPED_NS)
        wait_until(lambda: not daemon.engines(), "the engine to end")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_rank_that_is_killed_in_that_state_is_named_in_time(daemon, elsewhere):
    """Elsewhere: another process keeps the descriptor of the userfaultfd, and the kernel goes on waiting for it."""
    daemon.allow("rank-lost")
    job = job_of(daemon, seconds=60)
    ops = submit(job, "w")
    child = job.ranks[1].ask("hold")["pid"] if elsewhere else 0
    try:
        wait_for_silence(job)
        job.ranks[0].post_wait(ops[0], 20)
        at_ns = job.ranks[1].kill()
        outcome = job.ranks[0].collect_outcome()
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 1 and "SIGKILL" in outcome.text, outcome
        check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)
    finally:
        if child:
            os.kill(child, 9)


@pytest.mark.parametrize("side", ["in", "out"])
def test_a_rank_that_closes_in_that_state_gets_its_memory_back(daemon, side):
    daemon.allow("rank-left")
    job = job_of(daemon, seconds=60)
    ops = submit(job, "w", side)
    wait_for_silence(job)
    job.ranks[0].post_wait(ops[0], 20)
    at_ns = time.monotonic_ns()
    job.ranks[1].close()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LEFT and "closed its session" in outcome.text, outcome
    check_prompt("the peer learned of it", outcome.at_ns - at_ns, DEADLINE_NS)
    job.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rank_that_breaks_the_protocol_costs_the_others_neither_time_nor_ops(threads):
    """Rank 2 is the liar. The others' ops wait for memory that answers late, each in turn."""
    with Daemon(options={"threads": str(threads)}) as daemon:
        daemon.allow("rank-ended", "session-ended", "rank-lost", "memory-silent")
        job = Job(daemon, 0)
        environment = {"HVD_FOREIGN_MEMORY": "always", "HVD_MEMORY_TIMEOUT_SECONDS": "60"}
        job.ranks = [daemon.rank(environment=environment) for _ in range(2)]
        for number, rank in enumerate(job.ranks):
            rank.open(job.name, number, 3)
        opening = [rank.submit("set_open", ranks=[0, 1]) for rank in job.ranks]
        opened = {rank.outcome(op).process_set for rank, op in zip(job.ranks, opening)}
        ops = [op for number in range(8) for op in submit(job, f"w{number}", process_set=min(opened))]
        wait_for_silence(job, threads)
        path, more = daemon.trainer("hvt-liar")
        done = subprocess.run([path, f"--address={daemon.address}", f"--job={job.name}", "--lie=seq_gap", "--rank=2", "--size=3",
                               f"--wait-ms={int(scaled(5) * 1000)}"], capture_output=True, text=True, timeout=scaled(60), check=True,
                              **more)
        ended_ns = time.monotonic_ns()
        check_prompt("the liar was told", ended_ns - json.loads(done.stdout)["lied_ns"], DEADLINE_NS)
        assert stalls(job)
        check_prompt("hvdctl was answered", time.monotonic_ns() - ended_ns, DEADLINE_NS)
        job.ranks[1].ask("answer")
        for number, op in enumerate(ops):
            assert job.ranks[number % 2].outcome(op).ok


def test_threads_that_wait_are_bounded_and_the_job_goes_on():
    with Daemon(options={"threads": "1"}) as daemon:
        job = job_of(daemon, seconds=0.2)
        ops = [submit(job, f"w{number}") for number in range(24)]
        texts = []
        for first, second in ops:
            outcomes = [job.ranks[0].wait(first), job.ranks[1].wait(second)]
            assert outcomes[0].text == outcomes[1].text
            texts.append(outcomes[0].text)
        assert sum("has not answered for" in text for text in texts) == 17, texts
        assert texts[-1] == "too many threads of the engine wait for ranks' memory that does not answer"
        job.check_usable()
        check_memory_is_moved(job, "mapped", memory="shared")
        job.ranks[1].ask("answer")
        wait_until(lambda: all(outcome.ok for outcome in job.run("allreduce", dtype="float32", dims=[FLOATS])),
                   "ordinary memory to be moved again")
