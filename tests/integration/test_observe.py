# SPDX-License-Identifier: Apache-2.0
"""Trace, lag and top of a running job, and of a rank that has died."""
import json
import subprocess
import time

import pytest

from hvt import CtlError, Status, program, wait_until
from hvt.job import Job


def test_the_trace_shows_the_last_ops_of_every_rank(daemon):
    job = Job(daemon, 2, name="traced")
    job.run("allreduce", name="w", dtype="float32", dims=[3], data=[bytes(12)] * 2)
    job.run("barrier", name="gate")
    waiting = job.ranks[1].submit("broadcast", "late", dtype="int64", dims=[4], data=bytes(32), root=1)
    rows = wait_until(lambda: [row for row in daemon.ctl.json("trace", "traced")["trace"] if row["number"] == 0],
                      "the open op to show up")
    assert [(row["rank"], row["tensor"], row["op"], row["bytes"], row["status_name"]) for row in rows] == [
        (1, "late", "broadcast", 32, "INPROGRESS")]
    done = [row for row in daemon.ctl.json("trace", "traced")["trace"] if row["number"] > 0]
    assert [(row["rank"], row["tensor"], row["op"], row["dtype"]) for row in done] == [
        (rank, *what) for rank in range(2) for what in (("w", "allreduce", "float32"), ("gate", "barrier", ""))]
    now = time.monotonic_ns()
    for row in done:
        assert row["submit_ns"] <= row["ready_ns"] <= row["done_ns"] <= now and row["status"] == 0
    table = daemon.ctl.run("trace", "traced", "--rank", "1").stdout
    assert "late" in table and "waiting" in table and len(table.splitlines()) == 4, table
    other = job.ranks[0].submit("broadcast", "late", dtype="int64", dims=[4], data=bytes(32), root=1)
    assert job.ranks[0].wait(other).ok and job.ranks[1].wait(waiting).ok


def test_the_trace_of_a_killed_rank_stays(daemon):
    job = Job(daemon, 2, name="bereft")
    for number in range(300):
        job.run("barrier", name=f"b{number}")
    op = job.ranks[1].submit("barrier", "never")
    wait_until(lambda: daemon.ctl.json("stalls", "bereft")["stalls"], "the op to be seen")
    job.ranks[1].kill()
    job.ranks[1].process.wait()
    daemon.expect_line("rank-lost")
    rows = daemon.ctl.json("trace", "bereft", "--rank", "1", "--last", "1024")["trace"]
    assert [row["tensor"] for row in rows] == [f"b{number}" for number in range(300)] + ["never"]
    assert rows[-1]["status"] == Status.ERR_RANK_LOST and rows[-1]["ready_ns"] == 0
    assert [row["number"] for row in rows] == list(range(1, 302)) and op is not None
    assert [row["tensor"] for row in daemon.ctl.json("trace", "bereft", "--rank", "1", "--last", "2")["trace"]] == [
        "b299", "never"]


def test_the_rank_that_others_wait_for_has_the_lag(daemon):
    job = Job(daemon, 2, name="uneven")
    for number in range(20):
        first = job.ranks[0].submit("barrier", f"b{number}")
        assert job.ranks[0].test(first).status == Status.INPROGRESS
        second = job.ranks[1].submit("barrier", f"b{number}")
        assert job.ranks[0].outcome(first).ok and job.ranks[1].outcome(second).ok
    quick, late = daemon.ctl.json("ranks", "uneven")["ranks"]
    assert quick["lag_ops"] == late["lag_ops"] == 20 and quick["last_ops"] == 0 and late["last_ops"] == 20
    assert quick["lag_max_ns"] == 0 < late["lag_p50_ns"] <= late["lag_p99_ns"] <= late["lag_max_ns"]
    assert "100 %" in daemon.ctl.run("ranks", "uneven").stdout


def test_top_counts_what_happens_between_two_looks(daemon):
    job = Job(daemon, 2, name="busy")
    idle = daemon.ctl.json("top", "busy", "--interval", "0.05")
    assert [row["ops_per_s"] for row in idle["ranks"]] == [0, 0] and idle["interval_ns"] >= 50_000_000
    top = subprocess.Popen([program("hvdctl"), "top", "busy", "--json", "--interval", "1"], env=daemon.ctl.environment,
                           stdout=subprocess.PIPE, text=True)
    while top.poll() is None:
        job.run("barrier")
    rows = json.loads(top.stdout.read())["ranks"]
    top.stdout.close()
    assert top.returncode == 0 and all(row["ops_per_s"] > 0 and row["job"] == "busy" for row in rows)
    table = daemon.ctl.run("top", "--once", "--interval", "0.05").stdout
    assert table.splitlines()[0].split()[:2] == ["JOB", "RANK"] and len(table.splitlines()) == 3, table
    with pytest.raises(CtlError) as caught:
        daemon.ctl.json("top", "nobody", "--interval", "0.05")
    assert caught.value.code == 1


@pytest.mark.parametrize("words", [("trace",), ("trace", "a", "--last", "0"), ("trace", "a", "--rank", "-1"),
                                   ("top", "a", "b"), ("top", "--interval", "soon")])
def test_wrong_usage_is_exit_code_2(daemon, words):
    assert daemon.ctl.run(*words).returncode == 2
