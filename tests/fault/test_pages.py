# SPDX-License-Identifier: Apache-2.0
"""Shared memory whose pages cannot be had: the op fails on every rank, and the engine and the peers, which were about to
touch them, go on. A page is missing here because the memfd of a rank is cut short under every mapping; hvt_unsealed.c
says why that stands for the other causes."""
import ctypes
import os
import re
import signal
import time

import pytest

from hvt import Daemon, Status, check_prompt, sanitized, wait_until
from hvt.job import Job

DEADLINE_NS = 100_000_000
PAGE = 4096
PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
ELEMENTS = 64 * 1024  # 256 KiB: ranks do it in a slot
# Where the op is done: number of elements, environment of every rank.
WAYS = {"slot": (ELEMENTS, {}), "engine": (ELEMENTS, {"HVD_EXPRESS": "small"}), "large": (2 << 20, {})}


@pytest.fixture(name="unsealed")
def _unsealed():
    if sanitized():
        pytest.skip("a sanitizer wants to be preloaded first")
    with Daemon(preload="libhvt-unsealed.so") as daemon:
        yield daemon


def descriptor(pid: int, least_bytes: int) -> int | None:
    """Of the engine's memfd for the one region that has so many bytes."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith(("/memfd:hvd-alloc", "/memfd:hvd-mem")) and os.stat(path).st_size >= least_bytes:
                return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
    return None


def go_round(job: Job, victim: int, way: str, memory: str = "shared", others: str = "", **more) -> None:
    """Allreduces without end, until some are done; the victim's region is twice as large as the others'."""
    column = "express" if way == "slot" else "ops"

    def done() -> int:
        return job.daemon.ctl.json("ranks", job.name)["ranks"][0][column]

    before = done()
    for number, rank in enumerate(job.ranks):
        rank.post("loop", name="w", elements=WAYS[way][0], blind=True, for_ms=120_000,
                  memory=memory if number == victim else others or memory, buffers=2 if number == victim else 1, **more)
    wait_until(lambda: done() > before + 20, "ops to be done")


def go_some_rounds(job: Job) -> list[dict]:
    """Allreduces that are checked."""
    for rank in job.ranks:
        rank.post("loop", name="x", elements=ELEMENTS, memory="shared", count=50)
    return [rank.collect() for rank in job.ranks]


def check_failed(job: Job, victim: int, replies: list[dict], began_ns: int) -> None:
    pid = job.ranks[victim].pid
    for reply in replies:
        assert reply["status"] == Status.ERR_NO_MEMORY, reply
        assert re.search(rf"allreduce 'w': a page of the memory of rank {victim} \(pid {pid}\) could not be had; "
                         "look at the limits of memory there", reply["text"]), reply
        check_prompt("the op failed", reply["at_ns"] - began_ns, DEADLINE_NS)
    assert len({reply["text"] for reply in replies}) == 1
    assert len({reply["done"] for reply in replies}) == 1, "an op ends the same way for all"


@pytest.mark.parametrize("memory", ["shared", "lasting"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_page_that_cannot_be_had_fails_the_op_on_every_rank(unsealed, way, size, memory):
    elements, environment = WAYS[way]
    unsealed.allow("page-missing")
    victim = size - 1
    job = Job(unsealed, size, environment=environment)
    for turn in range(3):
        go_round(job, victim, way, memory)
        engine = unsealed.engine_of(job.name)
        region = descriptor(engine, 2 * elements * 4)
        assert region is not None, turn
        began_ns = time.monotonic_ns()
        os.ftruncate(region, PAGE)
        check_failed(job, victim, [rank.collect() for rank in job.ranks], began_ns)
        os.ftruncate(region, 2 * elements * 4)  # lasting memory is used by the next turn again
        os.close(region)
        assert unsealed.engine_of(job.name) == engine, "the engine lives on"
        for reply in go_some_rounds(job):
            assert reply["status"] == Status.OK, reply
    assert all(rank.process.poll() is None for rank in job.ranks)


def test_it_is_told_from_memory_that_the_engine_reaches_by_address(unsealed):
    unsealed.allow("page-missing")
    job = Job(unsealed, 3, environment={"HVD_FOREIGN_MEMORY": "always"})
    go_round(job, 1, "large", others="malloc")
    region = descriptor(unsealed.engine_of(job.name), 2 * WAYS["large"][0] * 4)
    began_ns = time.monotonic_ns()
    os.ftruncate(region, PAGE)
    os.close(region)
    check_failed(job, 1, [rank.collect() for rank in job.ranks], began_ns)
    job.check_usable()


def test_memory_that_is_back_is_used_again(unsealed):
    unsealed.allow("page-missing")
    job = Job(unsealed, 2)
    go_round(job, 1, "slot")
    region = descriptor(unsealed.engine_of(job.name), 2 * ELEMENTS * 4)
    began_ns = time.monotonic_ns()
    os.ftruncate(region, PAGE)
    unsealed.expect_line("page-missing")
    os.ftruncate(region, 2 * ELEMENTS * 4)
    os.close(region)
    check_failed(job, 1, [rank.collect() for rank in job.ranks], began_ns)
    for reply in go_some_rounds(job):
        assert reply["status"] == Status.OK, reply


def test_ranks_that_meet_it_themselves_live_on(unsealed):
    """The engine stands still meanwhile, so the ranks are the ones to touch the page, the owner among them."""
    unsealed.allow("page-missing", "engine-silent")
    job = Job(unsealed, 3)
    go_round(job, 1, "slot")
    engine = unsealed.engine_of(job.name)
    region = descriptor(engine, 2 * ELEMENTS * 4)
    os.kill(engine, signal.SIGSTOP)
    os.ftruncate(region, PAGE)
    os.close(region)
    time.sleep(0.1)  # not a wait: whatever the ranks do now they do without the engine
    began_ns = time.monotonic_ns()
    os.kill(engine, signal.SIGCONT)
    check_failed(job, 1, [rank.collect() for rank in job.ranks], began_ns)
    job.check_usable()


def test_a_hole_is_filled_with_zeros_and_fails_nothing(daemon):
    """The machine has memory, so the kernel gives new pages at the next touch."""
    job = Job(daemon, 2)
    go_round(job, 1, "slot", count=20_000)
    region = descriptor(daemon.engine_of(job.name), 2 * ELEMENTS * 4)
    libc = ctypes.CDLL(None, use_errno=True)
    whole = ctypes.c_longlong(2 * ELEMENTS * 4)
    for _ in range(20):
        assert libc.fallocate(region, PUNCH_HOLE, ctypes.c_longlong(0), whole) == 0, os.strerror(ctypes.get_errno())
    os.close(region)
    for rank in job.ranks:
        assert rank.collect(60)["status"] == Status.OK


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_that_is_sent_still_ends_a_rank(daemon, way):
    """The library's handler of SIGBUS keeps nothing for itself that is not a missing page."""
    daemon.allow("rank-lost")
    job = Job(daemon, 2, environment=WAYS[way][1])
    go_round(job, 1, way)
    job.ranks[1].kill(signal.SIGBUS)
    reply = job.ranks[0].collect()
    job.ranks[1].kill_now()
    assert reply["status"] == Status.ERR_RANK_LOST, reply
    assert "SIGBUS" in reply["text"] or sanitized(), reply  # a sanitizer has a handler, and gets it
