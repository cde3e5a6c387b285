# SPDX-License-Identifier: Apache-2.0
"""Two hundred random kills in a row: trainers, engines and hvdd itself. Nothing is left behind, one job never notices."""
import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from hvt import Daemon, Status, sanitized, wait_until
from hvt.held import TOLERATED, WINDOWS, Held, settle, steady_engine
from hvt.job import Job

# What is killed, by turns of chance. hvdd's memory can only be watched while hvdd lives.
EVERYTHING = ("trainer", "trainer", "trainer", "trainer", "engine", "engine", "engine", "daemon")
NOT_HVDD = EVERYTHING[:-1]


def kill_something(daemon: Daemon, source: random.Random, kinds: tuple[str, ...]) -> str:
    """One job with work in flight loses a trainer, its engine, or hvdd dies; the survivors get an error and end."""
    size = source.choice((1, 2, 3, 4))
    job = Job(daemon, size, name=f"kill{source.getrandbits(64):016x}")
    elements = source.choice((2, 16, 5000, 200_000))
    memory = source.choice(("malloc", "shared", "adopted"))
    name = source.choice(("work", ""))
    for rank in job.ranks:
        rank.post("loop", name=name, elements=elements, memory=memory, for_ms=60_000, until_stdin=True)
    what = source.choice(kinds)
    time.sleep(source.uniform(0, 0.01))  # not a wait: the point in time is what is random
    if what == "trainer":
        victim = source.randrange(size)
        job.ranks[victim].kill()
        expected, survivors = Status.ERR_RANK_LOST, [rank for n, rank in enumerate(job.ranks) if n != victim]
    elif what == "engine":
        os.kill(daemon.engine_of(job.name), signal.SIGKILL)
        expected, survivors = Status.ERR_ENGINE_LOST, job.ranks
    else:
        daemon.kill()
        daemon.start()
        expected, survivors = Status.OK, job.ranks
        for rank in survivors:
            rank.post("stop")
    for rank in survivors:
        reply = rank.collect()
        assert reply["status"] == expected, (what, reply)
    for rank in job.ranks:
        rank.stop()
        daemon.ranks.remove(rank)
    return what


def kill_and_watch(daemon: Daemon, source: random.Random, watched: Callable[[Daemon], int], kinds: tuple[str, ...], turns: int,
                   seconds: float) -> list[str]:
    """So many kills, and more until so many seconds have passed, over which a process stays flat: what was killed. The
    steady job's engine could forget something each time that it meets a new hvdd, hvdd each time that something dies. A
    table that grows once is no leak: what grows in one window must grow in the next ones too. (A sanitizer has an
    allocator of its own.)"""
    killed = [kill_something(daemon, source, kinds) for _ in range(20)]
    settle(daemon)
    for _ in range(WINDOWS):
        end = time.monotonic() + seconds
        before = None if sanitized() else Held.of(daemon, watched(daemon))
        window = []
        while len(window) < turns - 20 or time.monotonic() < end:
            window.append(kill_something(daemon, source, kinds))
        settle(daemon)
        killed += window
        if before is None:
            return killed
        after = Held.of(daemon, watched(daemon))
        chances = window.count("daemon") or len(window)
        print(f"{len(window)} kills, {chances} chances: {before} -> {after}")
        if after.is_flat_since(before, chances):
            return killed
    raise AssertionError(f"a process grew in each of {WINDOWS} windows of kills: {before} -> {after}")


def run(seed: int, turns: int, seconds: float = 0) -> None:
    """Half of the kills and of the time with hvdd among the victims, half without."""
    source = random.Random(seed)
    print(f"seed {seed}")
    with Daemon(preload=None if sanitized() else "libhvt-heap.so") as daemon:
        daemon.allow(*TOLERATED)
        steady = Job(daemon, 2, name="steady")
        for rank in steady.ranks:
            rank.post("loop", name="", for_ms=max(600_000, int(seconds * 2000)), until_stdin=True)
        kinds = kill_and_watch(daemon, source, steady_engine, EVERYTHING, turns // 2, seconds / 2)
        kinds += kill_and_watch(daemon, source, lambda running: running.pid, NOT_HVDD, turns // 2, seconds / 2)
        assert set(kinds) == set(EVERYTHING)
        for rank in steady.ranks:
            rank.post("stop")
        for rank in steady.ranks:
            reply = rank.collect()
            assert reply["status"] == Status.OK and reply["done"] > len(kinds), reply
            rank.collect()
        steady.check_usable()


def test_two_hundred_random_kills_leave_nothing_behind():
    """Under a sanitizer fewer: what they see they see soon, and each kill takes three times as long."""
    run(seed=20261121, turns=80 if sanitized() else 200)


def test_kills_in_the_middle_of_attach_and_close_leave_nothing_behind():
    source = random.Random(20261122)
    with Daemon() as daemon:
        daemon.allow(*TOLERATED)
        steady = Job(daemon, 2, name="steady")
        for turn in range(100):
            ranks = [daemon.rank() for _ in range(2)]
            for number, rank in enumerate(ranks):
                rank.post("open", job=f"half{turn}", rank=number, size=2, timeout_ms=5000)
                if source.random() < 0.5:
                    rank.post("submit", kind="allreduce", name="x", dtype=7, dims=[20_000], memory="shared")
                if source.random() < 0.5:
                    rank.post("close", session=0)
            time.sleep(source.uniform(0, 0.006))  # not a wait: the point in time is what is random
            for rank in ranks:
                if source.random() < 0.7:
                    rank.kill()
                else:
                    rank.process.stdin.close()
            for rank in ranks:
                rank.process.wait(10)
                rank.stop()
                daemon.ranks.remove(rank)
        steady.check_usable()
        wait_until(lambda: [row["job"] for row in daemon.jobs()] == ["steady"], "only the steady job to remain", 10)


@pytest.mark.soak
@pytest.mark.limit(2700)
@pytest.mark.parametrize("seed", range(20))
def test_many_more_random_kills(seed):
    run(seed, 500)


@pytest.mark.soak
@pytest.mark.limit(2700)
def test_half_an_hour_of_random_kills():
    run(seed=int(time.time()), turns=200, seconds=1800)
