# SPDX-License-Identifier: Apache-2.0
"""Trace, lag and top of a running job, and of a rank that has died."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest

from hvt import CtlError, Status, program, scaled, stopped, wait_until
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


def test_top_says_that_the_engine_does_not_answer(daemon):
    daemon.allow("engine-silent")
    Job(daemon, 2, name="j")
    with stopped(daemon.engine_of("j")):
        top = daemon.ctl.run("top", "j", "--once", "--interval", "0.05")
        assert top.returncode == 0 and top.stdout == "no ranks\n", top
        assert re.search(r"the engine of job 'j' \(pid \d+\) did not answer", top.stderr), top
        document = daemon.ctl.json("top", "j", "--interval", "0.05")
        assert document["ranks"] == [] and "did not answer" in document["note"]


def test_trace_and_nodes_say_that_the_engine_does_not_answer(daemon):
    daemon.allow("engine-silent")
    Job(daemon, 2, name="j")
    sentence = r"the engine of job 'j' \(pid \d+\) did not answer"
    with stopped(daemon.engine_of("j")):
        for words, rows in ((("trace", "j"), "trace"), (("nodes",), "nodes")):
            done = daemon.ctl.run(*words)
            assert done.returncode == 0 and re.search(sentence, done.stderr), done
            document = daemon.ctl.json(*words)
            assert document[rows] == [] and document["rows_left_out"] == 0 and re.search(sentence, document["note"]), document


def test_events_end_when_nobody_reads_them(daemon):
    events = subprocess.Popen([program("hvdctl"), "events"], env=daemon.ctl.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert events.stdout.readline()
    events.stdout.close()
    assert events.wait(scaled(5)) == 0 and events.stderr.read() == b""
    events.stderr.close()


def test_a_timeline_that_is_refused_leaves_no_file(daemon, tmp_path):
    there = tmp_path / "there"
    there.touch()
    for path in (tmp_path / "new", there):
        done = daemon.ctl.run("timeline", "nobody", "start", str(path))
        assert done.returncode == 1, done
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("words", [("trace",), ("trace", "a", "--last", "0"), ("trace", "a", "--rank", "-1"),
                                   ("top", "a", "b"), ("top", "--interval", "soon")])
def test_wrong_usage_is_exit_code_2(daemon, words):
    assert daemon.ctl.run(*words).returncode == 2


# ---- timeline --------------------------------------------------------------------------------------------------------


def read_timeline(path):
    """The events; fails when the file is not valid JSON at this moment. Read again if its size has changed meanwhile."""
    size, text = -1, b""
    while size != path.stat().st_size:
        size = path.stat().st_size
        text = path.read_bytes()
    return json.loads(text)


def read_growing_timeline(path):
    """The same while it is written: a reader on another core may overtake the copy of one page, and reads again."""
    for _ in range(3):
        with contextlib.suppress(json.JSONDecodeError):
            return read_timeline(path)
    return read_timeline(path)


def rows_of(events):
    """Events per tensor name, in the order of the file."""
    names = {event["pid"]: event["args"]["name"] for event in events
             if event.get("name") == "process_name" and event["pid"] > 0}
    return {name: [event for event in events if event.get("pid") == pid and event["ph"] != "M"]
            for pid, name in names.items()}


def phases(events):
    """Names of B events with their nesting, "/" for E."""
    return [event["name"] if event["ph"] in "BX" else "/" for event in events]


@pytest.fixture(name="trace_file")
def _trace_file(tmp_path):
    return tmp_path / "trace.json"


def test_the_timeline_has_horovods_phases(daemon, trace_file):
    job = Job(daemon, 2, name="drawn")
    assert job.ranks[1].timeline(trace_file, mark=True).ok
    assert [event["name"] for event in read_timeline(trace_file)] == ["process_name", "process_sort_index"]
    job.run("allreduce", name='w"\n1', dtype="float32", dims=[3, 2], data=[bytes(24)] * 2)
    job.run("barrier", name="gate")
    assert job.ranks[0].timeline().ok
    events = json.loads(trace_file.read_text())
    head = events[0]
    assert head["pid"] == 0 and abs(head["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 60
    rows = rows_of(events)
    assert set(rows) == {'w"\n1', "gate"}
    assert phases(rows['w"\n1']) == ["NEGOTIATE_ALLREDUCE", "0", "1", "/", "ALLREDUCE", "QUEUE", "/", "HOST_ALLREDUCE",
                                     "/", "/"]
    assert phases(rows["gate"])[:4] == ["NEGOTIATE_BARRIER", "0", "1", "/"]
    assert rows['w"\n1'][-1]["args"] == {"dtype": "float32", "shape": "[3, 2]"}
    for row in rows.values():
        times = [event["ts"] for event in row]
        assert times == sorted(times) and times[0] > 0
    assert any(event.get("name") == "CYCLE_START" for event in events)
    assert not trace_file.read_text().endswith(" ") and trace_file.stat().st_size < 10000


def test_copies_of_ordinary_memory_are_in_the_timeline(daemon, trace_file):
    job = Job(daemon, 2, name="copied", environment={"HVD_FOREIGN_MEMORY": "never"})
    assert job.ranks[0].timeline(trace_file).ok
    job.run("allreduce", name="staged", dtype="float32", dims=[50000], data=[bytes(200000)] * 2)
    assert job.ranks[0].timeline().ok
    copies = [event for event in rows_of(json.loads(trace_file.read_text()))["staged"]
              if event.get("name") == "MEMCPY_IN_SHARED_BUFFER"]
    assert sorted(copy["tid"] for copy in copies) == [1, 2]
    assert all(copy["dur"] > 0 and copy["ts"] >= 0 for copy in copies)


def test_an_op_that_waits_is_in_the_file_at_once_and_a_failed_one_says_so(daemon, trace_file):
    daemon.allow("op-failed")
    job = Job(daemon, 2, name="drawn")
    assert job.ranks[0].timeline(trace_file).ok
    op = job.ranks[1].submit("allreduce", "late", dtype="float32", dims=[3])

    def row():
        return rows_of(read_timeline(trace_file)).get("late", [])

    wait_until(lambda: phases(row()) == ["NEGOTIATE_ALLREDUCE", "1"], lambda: f"the negotiation: {row()}")
    other = job.ranks[0].submit("allreduce", "late", dtype="float64", dims=[3])
    assert job.ranks[0].outcome(other).status == job.ranks[1].outcome(op).status == Status.ERR_MISMATCH
    wait_until(lambda: phases(row()) == ["NEGOTIATE_ALLREDUCE", "1", "0", "/"], lambda: f"its end: {row()}")
    assert row()[-1]["args"]["status"] == "ERR_MISMATCH"


def test_an_op_that_waited_when_the_timeline_began_is_in_it(daemon, trace_file):
    """As with HOROVOD_TIMELINE, which starts it when rank 0 comes: the others may have submitted by then."""
    job = Job(daemon, 2, name="drawn")
    op = job.ranks[1].submit("allreduce", "early", dtype="float32", dims=[3])
    wait_until(lambda: daemon.ctl.json("stalls", "drawn")["stalls"], "the op to be seen")
    assert job.ranks[0].timeline(trace_file).ok
    other = job.ranks[0].submit("allreduce", "early", dtype="float32", dims=[3])
    assert job.ranks[0].outcome(other).ok and job.ranks[1].outcome(op).ok
    assert job.ranks[0].timeline().ok
    row = rows_of(json.loads(trace_file.read_text()))["early"]
    assert phases(row) == ["NEGOTIATE_ALLREDUCE", "1", "0", "/", "ALLREDUCE", "QUEUE", "/", "HOST_ALLREDUCE", "/", "/"]
    assert row[0]["ts"] >= 0


def test_small_ops_that_ranks_combine_by_themselves_are_seen_while_a_timeline_runs(daemon, trace_file):
    job = Job(daemon, 2, name="drawn")
    for number in range(9):
        if number in (3, 6):
            assert job.ranks[0].timeline(trace_file if number == 3 else None).ok
        for outcome in job.run("allreduce", name="w", dtype="float32", dims=[3], data=[bytes(12)] * 2):
            assert outcome.ok
    assert [name for name in phases(rows_of(read_timeline(trace_file))["w"]) if name.startswith("NEG")] == [
        "NEGOTIATE_ALLREDUCE"] * 3
    assert [row["ops"] for row in daemon.ctl.json("ranks", "drawn")["ranks"]] == [9, 9]


def test_one_timeline_at_a_time_and_again_after_a_stop(daemon, tmp_path):
    job = Job(daemon, 2, name="drawn")
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    second.write_text("precious")
    assert job.ranks[0].timeline().ok  # nothing runs
    assert job.ranks[0].timeline(first).ok
    refused = job.ranks[1].timeline(second)
    assert refused.status == Status.ERR_EXISTS and str(first) in refused.text
    assert second.read_text() == "precious"
    assert job.ranks[1].timeline().ok and job.ranks[1].timeline(second).ok
    job.run("barrier", name="x")
    assert job.ranks[0].timeline().ok
    assert len(read_timeline(first)) == 2 and len(read_timeline(second)) > 8
    assert job.ranks[0].timeline(tmp_path / "no" / "dir").status == Status.ERR_INVALID
    daemon.allow("timeline-refused")
    refused = job.ranks[0].timeline("/dev/null")
    assert refused.status == Status.ERR_INVALID and "no regular file" in refused.text
    assert job.ranks[0].timeline(first).ok
    job.check_usable()


def test_hvdctl_starts_and_stops_a_timeline(daemon, trace_file):
    job = Job(daemon, 2, name="drawn")
    done = daemon.ctl.run("timeline", "drawn", "start", str(trace_file), "--mark-cycles")
    assert done.returncode == 0 and str(trace_file) in done.stdout, done.stderr
    job.run("barrier", name="x")
    again = daemon.ctl.run("timeline", "drawn", "start", str(trace_file), "--json")
    assert again.returncode == 1 and json.loads(again.stdout)["error"]["name"] == "ERR_EXISTS"
    assert daemon.ctl.json("timeline", "drawn", "stop")["done"]
    names = [event.get("name") for event in read_timeline(trace_file)]
    assert "NEGOTIATE_BARRIER" in names and "CYCLE_START" in names
    for words, code in ((("nobody", "stop"), 1), (("nobody", "start", str(trace_file)), 1), (("drawn", "start"), 2),
                        (("drawn", "pause"), 2), (("drawn", "start", "/no/where"), 1), (("a b", "stop"), 2)):
        assert daemon.ctl.run("timeline", *words).returncode == code, words
    assert "NEGOTIATE_BARRIER" in trace_file.read_text()


@pytest.mark.parametrize("prefix", ["HVD", "HOROVOD"])
def test_the_environment_starts_a_timeline(daemon, trace_file, prefix):
    job = Job(daemon, 2, name="drawn", environment={f"{prefix}_TIMELINE": str(trace_file),
                                                    f"{prefix}_TIMELINE_MARK_CYCLES": "1"})
    job.run("barrier", name="x")
    job.close()
    daemon.ranks.clear()
    daemon.wait_no_jobs()
    events = read_timeline(trace_file)
    assert any(event.get("name") == "NEGOTIATE_BARRIER" for event in events)
    assert any(event.get("name") == "CYCLE_START" for event in events)


def test_dynamic_starts_nothing_and_a_bad_path_is_a_line_in_the_log(daemon, tmp_path):
    job = Job(daemon, 2, name="drawn", environment={"HVD_TIMELINE": "DYNAMIC"})
    assert job.ranks[0].timeline(tmp_path / "t").ok and job.ranks[0].log() == []
    other = Job(daemon, 1, environment={"HVD_TIMELINE": "/dev/null/t"})
    other.check_usable()
    assert [line for line in other.ranks[0].log() if "no timeline will be written" in line and "/dev/null/t" in line]


def test_the_file_is_valid_json_at_every_moment_and_after_a_kill_of_the_engine(daemon, trace_file):
    job = Job(daemon, 2, name="drawn")
    assert job.ranks[0].timeline(trace_file, mark=True).ok
    for rank in job.ranks:
        rank.post("loop", name="w", elements=4, for_ms=60_000)
    sizes = set()
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        sizes.add(len(read_growing_timeline(trace_file)))
    assert len(sizes) > 3 and max(sizes) > 100, sizes
    daemon.allow("engine-lost", "engine-ended")
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGKILL)
    for rank in job.ranks:
        assert rank.collect()["status"] == Status.ERR_ENGINE_LOST
    assert len(read_timeline(trace_file)) >= max(sizes)
