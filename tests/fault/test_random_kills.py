# SPDX-License-Identifier: Apache-2.0
"""Two hundred random kills in a row: trainers, engines and hvdd itself. Nothing is left behind, one job never notices."""
import os
import random
import signal
import time

import pytest

from hvt import Daemon, Status, procs, sanitized, wait_until
from hvt.job import Job

TOLERATED = ("rank-lost", "engine-killed", "engine-lost", "engine-exited", "engine-ended", "attach-refused",
             "peer-lost", "hello-refused")


def kill_something(daemon: Daemon, source: random.Random, turn: int) -> str:
    """One job with work in flight loses a trainer, its engine, or hvdd dies; the survivors get an error and end."""
    size = source.choice((1, 2, 3, 4))
    job = Job(daemon, size, name=f"kill{turn}")
    elements = source.choice((2, 16, 5000, 200_000))
    memory = source.choice(("malloc", "shared", "adopted"))
    name = source.choice(("work", ""))
    for rank in job.ranks:
        rank.post("loop", name=name, elements=elements, memory=memory, for_ms=60_000, until_stdin=True)
    what = source.choice(("trainer", "trainer", "trainer", "trainer", "engine", "engine", "engine", "daemon"))
    time.sleep(source.uniform(0, 0.01))  # not a wait: the point in time is what is random
    if what == "trainer":
        victim = source.randrange(size)
        job.ranks[victim].kill()
        expected, survivors = Status.ERR_RANK_LOST, [rank for n, rank in enumerate(job.ranks) if n != victim]
    elif what == "engine":
        os.kill(next(row["engine_pid"] for row in daemon.jobs() if row["job"] == job.name), signal.SIGKILL)
        expected, survivors = Status.ERR_ENGINE_LOST, job.ranks
    else:
        daemon.kill()
        daemon.start()
        expected, survivors = Status.OK, job.ranks
        for rank in survivors:
            rank.post("stop")
    for rank in survivors:
        reply = rank.collect()
        assert reply["status"] == expected, (turn, what, reply)
    for rank in job.ranks:
        rank.stop()
        daemon.ranks.remove(rank)
    return what


def held(daemon: Daemon) -> dict[str, int]:
    """What must not grow with the number of kills: memory of hvdd and of the steady job's engine, shared memory."""
    wait_until(lambda: "steady" in [row["job"] for row in daemon.jobs()], "the steady job to be known to a new hvdd")
    engine = next(row["engine_pid"] for row in daemon.jobs() if row["job"] == "steady")
    memfds = sum(len(procs.memfds(pid)) for pid in procs.with_token(daemon.token))
    return {"hvdd": procs.rss_bytes(daemon.pid), "engine": procs.rss_bytes(engine), "memfds": memfds,
            "engine's descriptors": len(procs.fds(engine))}


def run(seed: int, turns: int, flat: bool = False, seconds: float = 0) -> None:
    """So many kills, and more until so many seconds have passed."""
    end = time.monotonic() + seconds
    source = random.Random(seed)
    with Daemon() as daemon:
        daemon.allow(*TOLERATED)
        steady = Job(daemon, 2, name="steady")
        for rank in steady.ranks:
            rank.post("loop", name="", for_ms=max(600_000, int(seconds * 2000)), until_stdin=True)
        fds = len(procs.fds(daemon.pid))
        kinds = [kill_something(daemon, source, turn) for turn in range(min(turns, 100))]
        before = held(daemon)
        kinds += [kill_something(daemon, source, turn) for turn in range(100, turns)]
        while time.monotonic() < end:
            kinds.append(kill_something(daemon, source, turns := turns + 1))
        assert set(kinds) == {"trainer", "engine", "daemon"}
        wait_until(lambda: [row["job"] for row in daemon.jobs()] == ["steady"], "only the steady job to remain")
        wait_until(lambda: len(daemon.engines()) == 1, "only one engine to remain")
        wait_until(lambda: len(procs.fds(daemon.pid)) <= fds + 2, "hvdd's descriptors to be closed")
        after = held(daemon)
        print(f"seed {seed}, {turns} kills: {before} -> {after}")
        if flat:
            allowed = {"hvdd": 4 << 20, "engine": 1 << 20, "memfds": 0, "engine's descriptors": 0}
            assert all(after[what] <= before[what] + room for what, room in allowed.items()), (before, after)
        for rank in steady.ranks:
            rank.post("stop")
        for rank in steady.ranks:
            reply = rank.collect()
            assert reply["status"] == Status.OK and reply["done"] > turns, reply
            rank.collect()
        steady.check_usable()


def test_two_hundred_random_kills_leave_nothing_behind():
    """Under a sanitizer fewer: what they see they see soon, and each kill takes three times as long."""
    run(seed=20261121, turns=60 if sanitized() else 200)


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
    run(seed, 500, flat=True)


@pytest.mark.soak
@pytest.mark.limit(2700)
def test_half_an_hour_of_random_kills():
    run(seed=int(time.time()), turns=200, flat=True, seconds=1800)
