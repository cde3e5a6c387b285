# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups: who pays for the pages of operands, and what becomes of a job when the kernel ends a process of it because its
cgroup has no more."""
import contextlib
import ctypes
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Iterator

import ledger
import pytest

from hvt import Daemon, Status, sanitized, wait_until
from hvt.job import Job

pytestmark = pytest.mark.skipif(ledger.CONDITIONS["no-memory-cgroup"](), reason="no limit of memory can be set here")

MIB = 1 << 20
PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
ELEMENTS = 2 * MIB  # float32: 8 MiB
ROOM = (48 if sanitized() else 12) * MIB  # what an engine has of its own
BY_ENGINE = {"HVD_EXPRESS": "small"}


class Cgroup:
    """A new one below this process's own. Version 1 was tried; version 2 was not."""

    def __init__(self) -> None:
        rows = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
        old = [path for _, names, path in rows if "memory" in names.split(",")]
        self._names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        top = pathlib.Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup")
        above = top / (old or [path for _, names, path in rows if not names])[0].strip("/")
        self.path = (above if above.exists() else top) / f"hvt-{secrets.token_hex(4)}"
        self.path.mkdir()

    def take(self, pid: int) -> None:
        """What the process touches from now on is charged here."""
        (self.path / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def limit(self, size: int) -> None:
        (self.path / self._names[0]).write_text(str(size), encoding="ascii")

    def used(self) -> int:
        return int((self.path / self._names[1]).read_text(encoding="ascii"))


@contextlib.contextmanager
def cgroup() -> Iterator[Cgroup]:
    """Gone with its last process."""
    made = Cgroup()
    try:
        yield made
    finally:
        home = made.path.parent / "cgroup.procs"
        for pid in (made.path / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                home.write_text(pid, encoding="ascii")

        def is_gone() -> bool:
            with contextlib.suppress(OSError):
                made.path.rmdir()
            return not made.path.exists()
        wait_until(is_gone, "the cgroup to be empty")


def regions(pid: int) -> list[int]:
    """The engine's descriptors of large regions; the caller's to close."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).startswith("/memfd:hvd-") and os.stat(path).st_size >= 4 * ELEMENTS:
                found.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return found


@contextlib.contextmanager
def punched(pid: int) -> Iterator[None]:
    """Holes are made in the ranks' regions all the time, as their owners could."""
    over, libc, held = threading.Event(), ctypes.CDLL(None, use_errno=True), regions(pid)
    assert held

    def punch() -> None:
        while not over.wait(0.02):
            for fd in held:
                libc.fallocate(fd, PUNCH_HOLE, ctypes.c_longlong(0), ctypes.c_longlong(os.fstat(fd).st_size))

    thread = threading.Thread(target=punch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for fd in held:
            os.close(fd)


def begin(job: Job, **more: object) -> None:
    """Allreduces, of which the engine has done some; the ranks themselves touch nothing."""
    before = job.daemon.ctl.json("ranks", job.name)["ranks"][0]["ops"]
    for rank in job.ranks:
        rank.post("loop", name="w", elements=ELEMENTS, memory="shared", blind=True, **more)
    wait_until(lambda: job.daemon.ctl.json("ranks", job.name)["ranks"][0]["ops"] > before + 2, "ops to be done")


@pytest.mark.parametrize("memory", ["shared", "registered", "adopted", "lasting", "malloc"])
def test_the_pages_of_operands_are_their_ranks(daemon, memory):
    """Whatever the size. An engine has buffers of its own for what it reaches by address."""
    job = Job(daemon, 2, environment=BY_ENGINE)
    with cgroup() as engines:
        engines.take(daemon.engine_of(job.name))
        for elements in (1 << 10, ELEMENTS):
            for rank in job.ranks:
                rank.post("loop", name=f"of {elements}", elements=elements, memory=memory, count=2)
            for rank in job.ranks:
                assert rank.collect()["status"] == Status.OK
        assert engines.used() <= ROOM, "of more than 32 MiB"


def test_an_engine_pays_for_no_more_than_its_ranks_have_registered(daemon):
    """However often they punch holes: region-limit, and region-bytes-per-user for all jobs of a user, bound it."""
    job = Job(daemon, 2, environment=BY_ENGINE)
    with cgroup() as engines:
        engine = daemon.engine_of(job.name)
        begin(job, count=300, rest_us=5_000)  # 2 s or more, in which both ranks do as many ops: what they tell each other is lost
        engines.take(engine)
        registered = sum(row["region_bytes"] for row in daemon.ctl.json("ranks", job.name)["ranks"])
        with punched(engine):
            wait_until(lambda: engines.used() > MIB, "the engine to pay for pages")
            while not job.ranks[0].has_reply():
                assert engines.used() <= registered + ROOM
                time.sleep(0.01)
        for rank in job.ranks:
            rank.collect()


def test_an_engine_whose_cgroup_has_no_more_is_the_end_of_its_job_alone(daemon):
    daemon.allow("engine-ended")
    job, other = Job(daemon, 2, environment=BY_ENGINE), Job(daemon, 2, name="other")
    with cgroup() as engines:
        engine = daemon.engine_of(job.name)
        begin(job, for_ms=60_000)
        engines.limit(6 * MIB)
        with punched(engine):
            engines.take(engine)
            replies = [rank.collect(30) for rank in job.ranks]
    for reply in replies:
        assert reply["status"] == Status.ERR_ENGINE_LOST and str(engine) in reply["text"], reply
    other.check_usable()


def test_a_trainer_whose_cgroup_has_no_more_is_lost_to_its_peers_alone(daemon):
    daemon.allow("rank-lost")
    job, other = Job(daemon, 2), Job(daemon, 2, name="other")
    waiting = job.ranks[0].submit("barrier", "w")
    with cgroup() as trainers:
        trainers.limit(16 * MIB)
        trainers.take(job.ranks[1].pid)
        job.ranks[1].post("fill", bytes=64 * MIB)
        outcome = job.ranks[0].outcome(waiting)
        job.ranks[1].kill_now()
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 1 and "SIGKILL" in outcome.text, outcome
    other.check_usable()
