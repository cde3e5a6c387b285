# SPDX-License-Identifier: Apache-2.0
"""Full disks, few descriptors, no memory: a clear error and no damage."""
import os
import resource
import time

from hvt import Daemon, Status, check_prompt, procs, sanitized, wait_until
from hvt.job import Job, outcomes_of


DEADLINE_NS = 100_000_000


def few_files(count: int):
    """A preexec function that lowers the limit of descriptors."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def test_a_full_disk_under_the_log_stops_nothing_and_is_counted():
    with Daemon(stderr="/dev/full") as daemon:
        job = Job(daemon, 2)
        job.check_usable()
        job.ranks[1].kill()
        wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "rank 0 to hear of it")
        assert daemon.ctl.json("status")["daemon"]["log_lost"] > 0


def test_a_closed_log_pipe_stops_nothing(tmp_path):
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with Daemon(stderr=str(fifo)) as daemon:
        os.close(reader)
        job = Job(daemon, 2)
        job.check_usable()


def test_a_log_pipe_that_nobody_reads_costs_each_line_little_and_stops_nothing(tmp_path):
    fifo = tmp_path / f"log.{time.monotonic_ns()}"  # a test that was late runs again
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(filler, bytes(4096))
    except BlockingIOError:
        pass  # full
    with Daemon(stderr=str(fifo)) as daemon:
        rank = daemon.rank()
        rank.open("mine", 0, 1)

        def lost() -> int:
            return daemon.ctl.json("status")["daemon"]["log_lost"]

        before = lost()
        began_ns = time.monotonic_ns()
        for number in range(20):
            assert rank.try_open("mine", 1, 2, session=1).status == Status.ERR_BAD_SIZE, number
        took_ns = time.monotonic_ns() - began_ns
        lines = lost() - before
        assert lines >= 20, "each refusal is logged"
        check_prompt("each lost line cost", took_ns // lines, 25_000_000)
        assert rank.outcome(rank.submit("barrier", "b")).ok
    os.close(filler)
    os.close(reader)


def test_a_daemon_with_few_descriptors_refuses_and_recovers():
    with Daemon(preexec=few_files(40)) as daemon:
        daemon.allow("attach-refused", "no-engine", "cannot-accept", "out-of-fds", "no-descriptors", "engine-killed",
                     "no-socket", "no-event")
        ranks, outcomes = [], []
        for number in range(40):
            rank = daemon.rank()
            outcomes.append(rank.try_open(f"j{number}", 0, 1, timeout_ms=3000))
            ranks.append(rank)
            if not outcomes[-1].ok:
                break
        refused = [outcome for outcome in outcomes if not outcome.ok]
        assert refused, "40 engines with 40 descriptors?"
        assert refused[0].status in (Status.ERR_DAEMON_LIMIT, Status.ERR_DAEMON, Status.ERR_ATTACH_TIMEOUT)
        assert refused[0].text
        first = ranks[0]
        op = first.submit("barrier", "b")
        assert first.outcome(op).ok, "a job that was there before was hurt"
        for rank in ranks[1:]:
            rank.stop()
        wait_until(lambda: daemon.rank().try_open("after", 0, 1).ok, "attaches to work again", 10, 0.1)


def test_a_client_out_of_descriptors_gets_a_clear_error_and_can_try_again_with_the_same_ranks(daemon):
    first, rank = daemon.rank(), daemon.rank()
    first.open("few", 0, 2)
    rank.ask("limit", files=1000)  # its answer says that the program has started, and closed what that needed
    used = len(procs.fds(rank.pid))
    for room in range(0, 6):  # its socket, and five from the engine
        rank.ask("limit", files=used + room)
        outcome = rank.try_open("few", 1, 2, timeout_ms=2000)
        assert outcome.status in (Status.ERR_LIMIT, Status.ERR_NO_MEMORY), (room, outcome)
        assert outcome.text
        assert len(procs.fds(rank.pid)) == used, "a failed open left a descriptor"
    rank.ask("limit", files=used + 200)
    rank.open("few", 1, 2)
    ops = [(each, each.submit("barrier", "b")) for each in (first, rank)]
    assert all(outcome.ok for outcome in outcomes_of(ops)), "the other rank has lost this one"


def test_a_client_out_of_descriptors_cannot_allocate_but_its_session_goes_on(daemon):
    job = Job(daemon, 2)
    rank = job.ranks[0]
    rank.ask("limit", files=0)
    began_ns = time.monotonic_ns()
    reply = rank.ask("alloc", bytes=1 << 20)
    check_prompt("the call failed", time.monotonic_ns() - began_ns, DEADLINE_NS)
    assert reply["status"] in (Status.ERR_LIMIT, Status.ERR_NO_MEMORY) and reply["text"], reply
    rank.ask("limit", files=1000)
    job.check_usable()


def test_a_region_beyond_the_jobs_limit_is_refused_with_the_limit_in_the_text():
    with Daemon(options={"region-limit": "8M"}) as daemon:
        daemon.allow("region-refused")
        job = Job(daemon, 2, environment={"HVD_FOREIGN_MEMORY": "never"})
        assert job.ranks[0].ask("alloc", bytes=6 << 20)["status"] == Status.OK
        for rank in job.ranks:
            began_ns = time.monotonic_ns()
            reply = rank.ask("alloc", bytes=6 << 20)
            check_prompt("the call failed", time.monotonic_ns() - began_ns, DEADLINE_NS)
            assert reply["status"] == Status.ERR_LIMIT, reply
            assert "region-limit" in reply["text"], reply
        outcome = job.ranks[1].try_submit("allreduce", "big", dtype="float32", dims=[2 << 20])
        assert outcome.status in (Status.ERR_LIMIT, Status.ERR_NO_MEMORY), outcome
        job.check_usable()


def test_memory_that_the_machine_does_not_have_is_an_error_and_not_a_crash(daemon):
    job = Job(daemon, 2)
    for size in (1 << 50, 1 << 62, (1 << 53) - 1):
        began_ns = time.monotonic_ns()
        reply = job.ranks[0].ask("alloc", bytes=size)
        check_prompt("the call failed", time.monotonic_ns() - began_ns, DEADLINE_NS)
        assert reply["status"] in (Status.ERR_NO_MEMORY, Status.ERR_LIMIT, Status.ERR_INVALID), reply
        assert reply["text"]
    job.check_usable()


def test_too_many_regions_are_refused_by_number():
    with Daemon(options={"regions-per-session": 5}) as daemon:
        daemon.allow("region-refused")
        job = Job(daemon, 2)
        replies = [job.ranks[0].ask("alloc", bytes=4096) for _ in range(8)]
        refused = [reply for reply in replies if reply["status"] == Status.ERR_LIMIT]
        assert len(refused) == 3 and "regions-per-session" in refused[0]["text"], replies
        job.check_usable()


def test_a_hundred_thousand_ops_cost_no_descriptor_and_no_memory(daemon):
    job = Job(daemon, 2)

    def rounds(count: int, elements: int) -> None:
        for rank in job.ranks:
            rank.post("loop", count=count, elements=elements, name=f"loop{elements}")
        for rank in job.ranks:
            reply = rank.collect(300)
            assert reply["status"] == Status.OK and reply["done"] == count, reply

    def holdings() -> list[tuple[int, int, int]]:
        pids = [rank.pid for rank in job.ranks] + daemon.engines()
        return [(len(procs.fds(pid)), procs.map_count(pid), procs.rss_bytes(pid)) for pid in pids]

    for elements in (16, 3000):
        rounds(3000, elements)
    before = holdings()
    share = 10 if sanitized() else 1
    rounds(90_000 // share, 16)
    rounds(10_000 // share, 3000)
    for (fds, maps, rss), (fds_now, maps_now, rss_now) in zip(before, holdings()):
        assert fds_now == fds
        assert maps_now <= maps + (20 if sanitized() else 2), "mappings pile up"  # malloc's own may come
        if not sanitized():  # their allocators keep what was freed
            assert rss_now <= rss + (1 << 20), f"{rss} bytes became {rss_now}"
