# SPDX-License-Identifier: Apache-2.0
"""Trainers in other pid, ipc, mount and user namespaces than hvdd: every kind of memory, the names of those that die, and
who may attach. docs/containers.md is what users read of it."""
import os
import pwd
import re
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from hvt import Daemon, Status, as_service, check_prompt, procs, wait_until
from hvt.build import program, scaled
from hvt.containers import PID, USER, HiddenDaemon, innermost, kill_trainer, may_be_made, root_of
from hvt.rank import Rank, open_job

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not may_be_made(), reason="needs root, to make namespaces and be two users")

DEADLINE_NS = 100_000_000
# Elements of float32: 4 B, 128 KiB, 64 MiB.
OPS = [(1, "malloc", 3), (32 << 10, "malloc", 3), (32 << 10, "shared", 20), (32 << 10, "lasting", 20), (16 << 20, "malloc", 1)]
KINDS = {"pid": PID, "ipc": ("unshare", "--ipc", "--uts", "--net"), "user": USER, "user and pid": (*USER, *PID[1:])}


def run_ops(ranks: Sequence[Rank], ops: Sequence[tuple[int, str, int]] = tuple(OPS)) -> None:
    """Allreduces, whose sums the ranks check."""
    for elements, memory, count in ops:
        for rank in ranks:
            rank.post("loop", name=f"{memory}-{elements}", elements=elements, memory=memory, count=count)
        for rank in ranks:
            assert rank.collect_outcome().ok, (elements, memory)


def check_death(ranks: Sequence[Rank], victim: int, told: str) -> None:
    """Kills the trainer; every other rank is told in time and by this sentence, where PID is its pid here."""
    ops = [rank.submit("barrier", "last") for rank in ranks if rank is not ranks[victim]]
    others = [rank for rank in ranks if rank is not ranks[victim]]
    for rank, op in zip(others, ops):
        rank.post_wait(op)
    pid, at_ns = kill_trainer(ranks[victim])
    for rank in others:
        outcome = rank.collect_outcome()
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == victim, outcome
        assert told.replace("PID", str(pid)) in outcome.text, outcome.text
        check_prompt("the death was told", outcome.at_ns - at_ns, DEADLINE_NS)
    ranks[victim].process.wait(scaled(5))  # unshare(1), which ends with a status of its own


@pytest.fixture(name="outside", scope="module")
def _outside() -> Iterator[Daemon]:
    with Daemon() as daemon:
        daemon.allow("rank-lost")
        yield daemon


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_in_containers_and_one_outside_are_a_job(outside, kind):
    """Where each container has a pid namespace, both trainers are process 1."""
    ranks = [outside.rank(), outside.rank(prefix=KINDS[kind]), outside.rank(prefix=KINDS[kind])]
    open_job(ranks, kind.replace(" ", "-"))
    pids = [innermost(rank.pid, "hvt-rank") for rank in ranks]
    run_ops(ranks, OPS if kind == "pid" else OPS[:-1])
    rows = outside.ctl.json("ranks", kind.replace(" ", "-"))["ranks"]
    assert [row["pid"] for row in rows] == pids
    assert [row["own_pid"] for row in rows] == ([pids[0], 1, 1] if "pid" in kind else pids)
    assert {row["memory"] for row in rows} == {"by address"} or not procs.may_be_entered()
    check_death(ranks, 2, "rank 2 (pid PID, 1 in its own pid namespace) was killed by signal 9 (SIGKILL)" if "pid" in kind
                else "rank 2 (pid PID) was killed by signal 9 (SIGKILL)")


def test_a_rank_with_another_root_finds_hvdd_where_its_directory_is_mounted(outside, tmp_path):
    ranks = [outside.rank(), outside.rank(prefix=root_of(outside, tmp_path))]
    open_job(ranks, "rooted")
    run_ops(ranks, OPS[:-1])
    check_death(ranks, 1, "rank 1 (pid PID) was killed by signal 9 (SIGKILL)")


def test_a_hvdd_in_a_container_serves_ranks_that_it_does_not_see():
    """How they end nobody there can tell; that they end, their pidfds do."""
    with HiddenDaemon() as daemon:
        daemon.allow("rank-lost")
        ranks = [daemon.rank(), daemon.rank(prefix=PID)]
        open_job(ranks, "hidden")
        run_ops(ranks)
        rows = daemon.ctl.json("ranks", "hidden")["ranks"]
        assert [(row["pid"], row["own_pid"]) for row in rows] == [(0, ranks[0].pid), (0, 1)]
        assert {row["memory"] for row in rows} == {"staged: hvdd does not see the rank's pid namespace"}
        assert re.search(r"pid 1 in its own pid namespace; ordinary memory staged: hvdd does not see", daemon.ctl.run("ranks", "hidden").stdout)
        early = ranks[0].submit("barrier", "early")
        row, = wait_until(lambda: daemon.ctl.json("stalls")["stalls"], "the op to be seen waiting")
        assert [(one["rank"], one["pid"], one["process"]) for one in row["missing"]] == [(1, 0, "?")]
        assert "1 (in another pid namespace)" in daemon.ctl.run("stalls").stdout
        ops = [early, ranks[1].submit("barrier", "early")]
        assert all(rank.outcome(op).ok for rank, op in zip(ranks, ops))
        check_death(ranks, 1, "rank 1 (pid 1 in its own pid namespace) is gone (how is not known)")


# hvd-perf for half a minute, as it ends after 20,000 iterations; rank 1 is killed meanwhile.
VICTIM = 'if [ "$HVD_RANK" = 1 ]; then (sleep 0.3; kill -9 $$) & fi; exec "$0" --seconds 3600 -b 16M -e 16M'


def test_hvdrun_tells_a_hvdd_that_does_not_see_the_ranks_how_one_ended():
    """It knows a rank by the pid that the rank has for itself."""
    with HiddenDaemon() as daemon:
        daemon.allow("rank-lost")
        words = [program("hvdrun"), "-np", "2", "--address", str(daemon.address), "bash", "-c", VICTIM, program("hvd-perf")]
        done = subprocess.run(words, env=daemon.environment, capture_output=True, text=True, check=False, timeout=scaled(30))
        assert re.search(r"rank 1 \(pid \d+ in its own pid namespace\) was killed by signal 9 \(SIGKILL\)", done.stderr), done


def test_users_whom_hvdds_user_namespace_does_not_have_are_refused():
    """They all read as one there, so one of them could join the job of another."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with Daemon(prefix=USER, folder_mode=0o755) as daemon:
        daemon.address.chmod(0o755)
        daemon.attach_path.chmod(0o777)
        outcome = daemon.rank(user=nobody, environment={"HVD_SERVICE_UID": "0"}).try_open("theirs", 0, 1)
        assert outcome.status == Status.ERR_REFUSED, outcome
        assert "hvdd's user namespace has no number for your user" in outcome.text, outcome.text
        daemon.expect_line("attach-refused")


def test_a_hvdd_whose_user_namespace_does_not_have_its_own_user_does_not_start():
    with pytest.raises(AssertionError, match="hvdd's user namespace has no number for hvdd's own user"):
        with Daemon(prefix=("unshare", "--user")):
            pass


def test_a_listener_whom_the_ranks_user_namespace_does_not_have_has_to_be_named():
    """Another stranger would read as the same user."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service()) as daemon:
        rank = daemon.rank(user=nobody, prefix=USER)
        outcome = rank.try_open("mine", 0, 1)
        assert outcome.status == Status.ERR_REFUSED, outcome
        assert "is any user that this user namespace has no number for" in outcome.text and "HVD_SERVICE_UID=65534" in outcome.text
        rank = daemon.rank(user=nobody, prefix=USER, environment={"HVD_SERVICE_UID": "65534"})
        rank.open("mine", 0, 1)
        assert [(row["job"], row["uid"]) for row in daemon.jobs()] == [("mine", nobody)]
