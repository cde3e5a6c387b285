# SPDX-License-Identifier: Apache-2.0
"""Cpuset cgroups, as a batch system makes one for each job: the engine keeps to the processors of its ranks."""
import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator

import ledger
import pytest

from hvt import wait_until
from hvt.daemon import Daemon
from hvt.gpu import gpus
from hvt.job import outcomes_of
from hvt.rank import Rank, open_job

pytestmark = pytest.mark.skipif(ledger.CONDITIONS["no-cpuset-cgroup"](), reason="no cpuset can be made here, or of one core only")


@contextlib.contextmanager
def cpuset(cores: str) -> Iterator[pathlib.Path]:
    """A new cgroup below this process's own, of version 1; its processes go back at the end."""
    rows = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    top = pathlib.Path("/sys/fs/cgroup/cpuset")
    above = top / next(path for _, names, path in rows if "cpuset" in names.split(",")).strip("/")
    above = above if above.exists() else top
    made = above / f"hvt-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        (made / "cpuset.mems").write_text((above / "cpuset.mems").read_text(encoding="ascii"), encoding="ascii")
        (made / "cpuset.cpus").write_text(cores, encoding="ascii")
        yield made
    finally:
        for pid in (made / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                (above / "cgroup.procs").write_text(pid, encoding="ascii")

        def is_gone() -> bool:
            with contextlib.suppress(OSError):
                made.rmdir()
            return not made.exists()
        wait_until(is_gone, "the cgroup to be empty")


def cores_of(pid: int) -> set[str]:
    """What the threads of the process may run on: each list that one of them has."""
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        lines = task.read_text(encoding="ascii").splitlines()
        found.add(next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")))
    return found


def ranks_in(daemon: Daemon, *cgroups: pathlib.Path | None) -> list[Rank]:
    """A process for each, that has not attached."""
    ranks = []
    for cgroup in cgroups:
        ranks.append(daemon.rank())
        if cgroup:
            (cgroup / "cgroup.procs").write_text(str(ranks[-1].pid), encoding="ascii")
    return ranks


def threads_of(daemon: Daemon) -> int:
    """As the newest engine has said."""
    return int(daemon.lines("started")[-1].pairs["threads"])


def test_an_engine_keeps_to_the_cpuset_of_its_ranks(daemon):
    """Each of its threads, once the first rank has attached; and there are as many as for so many cores."""
    with cpuset("0") as cgroup:
        ranks = ranks_in(daemon, cgroup, cgroup)
        open_job(ranks, "one")
        assert cores_of(daemon.engine_of("one")) == {"0"}
        assert threads_of(daemon) == 1
        daemon.close_ranks()


def test_an_engine_has_the_cores_of_all_its_ranks(daemon):
    """Each rank in a cpuset of its own, as containers of one job are."""
    with cpuset("0") as first, cpuset("1") as second:
        ranks = ranks_in(daemon, first, second)
        open_job(ranks, "two")
        engine = daemon.engine_of("two")
        assert cores_of(engine) == {"0-1"}
        names = [path.read_text(encoding="ascii").strip() for path in pathlib.Path(f"/proc/{engine}/task").glob("*/comm")]
        assert names.count("hvd-worker") == 2, "as many as cores"
        daemon.close_ranks()


@pytest.mark.skipif(ledger.CONDITIONS["service"](), reason="its users may not enter the folder of the fake driver")
def test_a_worker_of_a_gpu_keeps_to_the_cores_of_its_engine():
    """All its threads, the driver's too."""
    with gpus("devices=1") as daemon, cpuset("0") as cgroup:
        ranks = ranks_in(daemon, cgroup)
        open_job(ranks, "gpu")
        op = ranks[0].submit("allreduce", "x", dtype="int32", dims=[8], data=bytes(32), reduce_op="sum", memory="device", gpu=0)
        assert outcomes_of([(ranks[0], op)])[0].ok
        assert cores_of(daemon.worker()) == {"0"}
        daemon.close_ranks()


def test_a_rank_that_is_bound_to_a_core_does_not_bind_its_engine(daemon):
    """What a launcher binds is the rank; a control group is the job's."""
    ranks = ranks_in(daemon, None)
    os.sched_setaffinity(ranks[0].pid, {0})
    open_job(ranks, "bound")
    assert cores_of(daemon.engine_of("bound")) == cores_of(daemon.pid)


def test_an_engine_has_no_cores_that_hvdd_does_not_have(daemon):
    """As CPUAffinity= of its unit gives it; a job whose cpuset has none of them leaves the engine what it has."""
    before = os.sched_getaffinity(daemon.pid)
    os.sched_setaffinity(daemon.pid, {1})
    try:
        with cpuset("0") as cgroup:
            open_job(ranks_in(daemon, cgroup), "elsewhere")
            assert cores_of(daemon.engine_of("elsewhere")) == {"1"}
            daemon.close_ranks()
    finally:
        os.sched_setaffinity(daemon.pid, before)
