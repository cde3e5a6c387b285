# SPDX-License-Identifier: Apache-2.0
"""Every lie of hvt-liar against an engine with an honest peer in the same job and an honest job beside it."""
import json
import subprocess
import time

import pytest

from hvt import Daemon, Status, check_prompt, program, sanitized, scaled
from hvt.job import Job


def lies() -> list[tuple[str, str]]:
    done = subprocess.run([program("hvt-liar"), "--list"], check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["lie"], row["expect"]) for row in rows]


DEADLINE_NS = 100_000_000
LIES = lies()
ENDED = [name for name, expect in LIES if expect == "ended"]
OTHERS = [name for name, expect in LIES if expect in ("refused", "op", "harmless")]
ANY = [name for name, expect in LIES if expect == "any"]


@pytest.fixture(scope="module")
def shared_daemon():
    with Daemon() as daemon:
        daemon.allow("rank-ended", "session-ended", "rank-lost", "region-refused", "op-failed")
        yield daemon


@pytest.fixture(scope="module")
def honest(shared_daemon):
    return Job(shared_daemon, 2, name="honest")


def tell(daemon: Daemon, job: str, lie: str, *more: str) -> dict:
    path, user = daemon.trainer("hvt-liar")
    done = subprocess.run([path, f"--address={daemon.address}", f"--job={job}", f"--lie={lie}", f"--wait-ms={int(scaled(5) * 1000)}",
                           *more], capture_output=True, text=True, timeout=scaled(60), check=False, **user)
    assert done.returncode in (0, 1), done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout) | {"code": done.returncode}


@pytest.mark.parametrize("lie", ENDED)
def test_a_lie_ends_the_liars_session_with_a_logged_reason_and_nothing_else(shared_daemon, honest, lie):
    peer = shared_daemon.rank()
    peer.open(f"with-{lie}", 0, 2)
    op = peer.submit("barrier", "honest op")
    peer.post_wait(op)
    before = len(shared_daemon.log_text())
    told = tell(shared_daemon, f"with-{lie}", lie)
    assert told["code"] == 0, told
    outcome = peer.collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 1, outcome
    check_prompt("the liar's peer learned of it", outcome.at_ns - told["lied_ns"], DEADLINE_NS)
    logged = [line for line in shared_daemon.log_text()[before:].splitlines() if f"with-{lie}" in line
              and " warning " in line]
    assert logged, "nothing was logged"
    if lie != "socket_empty_with_fd":  # to the kernel this is an end of file
        assert told["status"] in (Status.ERR_PROTOCOL, 0)
        assert "protocol" in outcome.text, outcome.text
    honest.check_usable()
    peer.stop()


def test_a_lie_while_others_execute_a_large_op_holds_up_nobody():
    """The liar has no part in that op: a process set of the others."""
    elements = 1 << (27 if sanitized() else 28)
    with Daemon(options={"threads": "1"}) as daemon:
        daemon.allow("rank-ended", "session-ended", "rank-lost")
        others = [daemon.rank(), daemon.rank()]
        for number, rank in enumerate(others):
            rank.open("with-large", number, 3)
        opening = [rank.submit("set_open", ranks=[0, 1]) for rank in others]
        opened = {rank.outcome(op).process_set for rank, op in zip(others, opening)}
        large = [rank.submit("allreduce", "large", dtype="float16", dims=[elements], reduce_op="adasum", memory="shared",
                             in_place=True, process_set=min(opened)) for rank in others]
        others[0].post_wait(others[0].submit("barrier", "with the liar"))
        told = tell(daemon, "with-large", "seq_gap", "--rank=2", "--size=3")
        assert told["code"] == 0, told
        asked_ns = time.monotonic_ns()
        daemon.ctl.json("stalls", "with-large")
        answered_ns = time.monotonic_ns()
        outcome = others[0].collect_outcome()
        done = others[1].test(large[1])
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 2, outcome
        check_prompt("the liar's peer learned of it", outcome.at_ns - told["lied_ns"], DEADLINE_NS)
        check_prompt("hvdctl was answered", answered_ns - asked_ns, DEADLINE_NS)
        assert done.status == Status.INPROGRESS, "the op was too short to hold up anybody"
        for rank, number in zip(others, large):
            rank.post_wait(number, 60)
            assert rank.collect(60)["status"] == Status.OK


@pytest.mark.parametrize("lie", OTHERS)
def test_what_is_no_lie_to_the_engine_leaves_the_session_alone(shared_daemon, honest, lie):
    told = tell(shared_daemon, f"alone-{lie}", lie, "--rank=0", "--size=1")
    assert told["code"] == 0, told
    honest.check_usable()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lie", ANY)
def test_scribbling_over_shared_memory_hurts_nobody_else(shared_daemon, honest, lie, seed):
    told = tell(shared_daemon, f"any-{lie}-{seed}", lie, "--rank=0", "--size=1", f"--seed={seed * 7919 + 13}")
    assert told["code"] == 0, told
    honest.check_usable()


@pytest.mark.soak
@pytest.mark.limit(2700)
@pytest.mark.parametrize("lie", ANY)
def test_a_thousand_seeds_of_scribbling(shared_daemon, honest, lie):
    for seed in range(1000):
        told = tell(shared_daemon, f"soak-{lie}-{seed}", lie, "--rank=0", "--size=1", f"--seed={seed * 104729 + 1}")
        assert told["code"] == 0, (seed, told)
    honest.check_usable()
