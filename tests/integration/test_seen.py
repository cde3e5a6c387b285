# SPDX-License-Identifier: Apache-2.0
"""A job on two nodes, seen and stopped from each of them: hvdctl on any node tells of all of them, and names the one that does not
answer."""
import json
import pathlib
import time

import pytest

from hvt import Status, check_prompt
from hvt.build import program_for_strangers
from hvt.ctl import Ctl
from hvt.spread import SpreadJob

NOBODY = 65534
ANSWER_NS = 2_000_000_000  # what hvdd gives the engines of a job on several nodes


@pytest.fixture
def job(make_nodes):
    """Two ranks on each of two nodes, which have met in an op."""
    strangers, _ = program_for_strangers("hvdctl", {})
    running = SpreadJob(make_nodes(2, ssh=True, families=(4,), share=[pathlib.Path(strangers).parent]), (2, 2))
    running.check_usable()
    yield running
    for rank in running.ranks:
        rank.stop(20)
    running.await_end()
    for node in running.nodes:
        node.check_clean(10)


def environment_of(job, node):
    """Of a rank there."""
    lines = pathlib.Path(f"/proc/{job.ranks[job.ranks_of(node)[0]].pid}/environ").read_bytes().split(b"\0")
    return dict(line.decode().split("=", 1) for line in lines if b"=" in line)


def ctl_on(job, node):
    """hvdctl on that node, and what the job is called."""
    environment = environment_of(job, node)
    return Ctl(pathlib.Path(environment["HVD_ADDRESS"]), node.environment(), node), environment["HVD_JOB_ID"]


def rows_of(reply, job, node):
    """What is known of the job's nodes: those that answered, with their links."""
    rows = reply["job_nodes"]
    assert [row["name"] for row in rows] == ["n1", "n2"] and {row["job"] for row in rows} == {job}, rows
    assert [row["name"] for row in rows if row["here"]] == [node.name], rows
    assert all(row["answered"] for row in rows), rows
    return rows


def check_links(rows):
    """Each node has a control connection and a lane to the other, which have carried something."""
    for row, other in zip(rows, reversed(rows)):
        links = {link["kind"]: link for link in row["links"]}
        assert set(links) == {"control", "data"}, row
        for link in links.values():
            assert link["to"] == other["node"] and link["bytes_sent"] > 0 and link["bytes_received"] > 0 and link["rtt_ns"] > 0, link
        assert links["control"]["messages_sent"] > 0 and links["control"]["messages_received"] > 0, links


def check_ranks(job, node):
    ctl, name = ctl_on(job, node)
    reply = ctl.json("job", "ranks", name)
    assert [(row["rank"], row["node_name"], row["node_address"]) for row in reply["ranks"]] == [
        (rank, job.node_of(rank).name, job.node_of(rank).address) for rank in range(4)], reply
    assert all(row["state"] == "attached" and row["pid"] > 0 and row["ops"] > 0 for row in reply["ranks"]), reply
    rows = rows_of(reply, name, node)
    assert [row["ranks"] for row in rows] == [[0, 1], [2, 3]], rows
    check_links(rows)
    check_links(rows_of(ctl.json("nodes"), name, node))
    listed, = ctl.json("job", "list")["jobs"]
    assert (listed["job"], listed["nodes"], listed["attached"], listed["size"]) == (name, 2, 4, 4), listed


def check_stalls(job, node, ready):
    ctl, name = ctl_on(job, node)
    reply = ctl.json("stalls", name)
    row, = reply["stalls"]
    missing = [rank for rank in range(4) if rank not in ready]
    assert (row["tensor"], row["op"], row["ready"]) == ("late", "allreduce", ready), row
    assert [rank["rank"] for rank in row["missing"]] == missing, row
    assert all(rank["pid"] > 0 and rank["process"] in "RSD" for rank in row["missing"]), row
    places = [(job.nodes.index(job.node_of(rank)), job.node_of(rank).name, job.node_of(rank).address) for rank in missing]
    assert [(rank["node"], rank["node_name"], rank["node_address"]) for rank in row["missing"]] == places, row
    table = ctl.run("stalls", name).stdout
    assert all(f"{rank} (node {number} {there}, pid " in table for rank, (number, there, _) in zip(missing, places)), table


def check_trace(job, node):
    ctl, name = ctl_on(job, node)
    reply = ctl.json("trace", name, "--last", "5")
    late = [row for row in reply["trace"] if row["tensor"] == "late"]
    assert [row["rank"] for row in late] == [0, 1, 2, 3] and all(row["status_name"] == "OK" for row in late), reply
    there, = [row for row in rows_of(reply, name, node) if not row["here"]]
    # Both nodes have this machine's clock: what is measured of it is wrong by no more than it says.
    assert 0 < there["clock_error_ns"] and abs(there["clock_ahead_ns"]) <= there["clock_error_ns"] + 1, there
    # No rank is done before the last one has submitted, by one clock.
    assert max(row["submit_ns"] for row in late) <= min(row["done_ns"] for row in late) + there["clock_error_ns"], late
    assert ", are right to within" in ctl.run("trace", name).stdout


def submit(job, ranks):
    return {rank: job.ranks[rank].submit("allreduce", "late", dtype="int32", dims=[1], data=bytes(4), reduce_op="sum") for rank in ranks}


def test_each_node_tells_of_all_of_them(job):
    ops = {}
    for node in job.nodes:
        check_ranks(job, node)
    for ready in ([0], [0, 2], [0, 1, 2]):  # the root knows of its own alone; of a part of each; of one node whole
        ops |= submit(job, set(ready) - set(ops))
        for node in job.nodes:
            check_stalls(job, node, ready)
    ops |= submit(job, [3])
    for rank, op in ops.items():
        assert job.ranks[rank].outcome(op).ok
    for node in job.nodes:
        check_trace(job, node)


def check_node_stops_it(job, node):
    ops = submit(job, [0, 3])
    ctl, name = ctl_on(job, node)
    done = ctl.run("job", "stop", name, "--reason", "enough")
    assert done.returncode == 0 and "which tells those of the other nodes" in done.stdout, done
    for rank, op in ops.items():
        outcome = job.ranks[rank].wait(op)
        assert outcome.status == Status.ERR_JOB_STOPPED and "enough" in outcome.text, outcome
    for rank in (1, 2):
        outcome = job.ranks[rank].try_submit("barrier", "after")
        assert outcome.status == Status.ERR_JOB_STOPPED and "enough" in outcome.text, outcome


def test_each_node_stops_the_job_and_a_stranger_does_not(job):
    for node in job.nodes:
        ctl, name = ctl_on(job, node)
        for command in (["job", "stop", name], ["job", "ranks", name], ["stalls", name], ["trace", name]):
            done = ctl.run(*command, user=NOBODY)
            assert done.returncode != 0 and not done.stdout, done
    for node in job.nodes:
        job.check_usable()
        check_node_stops_it(job, node)
        job.reopen()


def check_timeline(events):
    """Every rank's part of the op, by its node, on one clock."""
    rows = {event["args"]["name"]: event["pid"] for event in events if event.get("name") == "process_name" and "name" in event["args"]}
    assert set(rows) == {"0 n1: seen", "1 n2: seen"} and len(set(rows.values())) == 2, rows
    ends = []
    for node, name in enumerate(sorted(rows)):
        mine = [event for event in events if event["pid"] == rows[name] and event["ph"] != "M"]
        assert [event["name"] for event in mine if event["ph"] == "B"] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "HOST_ALLREDUCE"], mine
        assert len([event for event in mine if event["ph"] == "E"]) == 4, mine
        assert sorted(event["name"] for event in mine if event["ph"] == "X" and event["dur"] == 0) == [str(2 * node), str(2 * node + 1)], mine
        ends.append(max(event["ts"] for event in mine))
        assert [event["ts"] for event in mine] == sorted(event["ts"] for event in mine), mine
    starts = [event["ts"] for event in events if event.get("name") == "NEGOTIATE_ALLREDUCE"]
    # No node is done before the other one has begun. Both have this machine's clock, which is measured to within some ms at worst.
    assert len(starts) == 2 and max(starts) < min(ends) + 5000, (starts, ends)


def test_a_timeline_has_the_parts_of_all_nodes(job):
    (first, name), (second, _) = (ctl_on(job, node) for node in job.nodes)
    path = job.nodes.shared / "seen.json"
    for starter, stopper in ((second, first), (first, first)):
        assert starter.run("timeline", name, "start", str(path)).returncode == 0
        for ctl in (first, second):
            refused = ctl.run("timeline", name, "start", str(path.with_suffix(".other")))
            assert refused.returncode == 1 and "writes a timeline already" in refused.stderr, refused
        data = [bytes(4)] * 4
        assert all(outcome.ok for outcome in job.run("allreduce", name="seen", dtype="int32", dims=[1], data=data, reduce_op="sum"))
        stopped = stopper.run("timeline", name, "stop")
        assert stopped.returncode == 0, stopped
        check_timeline(json.loads(path.read_text(encoding="utf-8")))
    assert second.run("timeline", name, "stop").returncode == 0  # there is none: as on one node


@pytest.mark.parametrize("last", [(2, 3), (0, 1)], ids=["the-writer-ends-first", "the-writer-ends-last"])
def test_a_timeline_that_hvdrun_asked_for_has_the_parts_of_all_nodes(make_nodes, last):
    """Nobody stops it: it is complete when the job is over, to the last op, whichever node is the first to end."""
    nodes = make_nodes(2, ssh=True, families=(4,))
    path = nodes.shared / "all.json"
    job = SpreadJob(nodes, (2, 2), "--timeline-filename", str(path))
    inputs = [bytes(4)] * 4
    assert all(outcome.ok for outcome in job.run("allreduce", name="seen", dtype="int32", dims=[1], data=inputs, reduce_op="sum"))
    for rank in sorted(range(4), key=lambda rank: rank in last):
        job.ranks[rank].post("close")
    for rank in job.ranks:
        rank.stop()
    assert job.await_end() == 0, job.said()
    check_timeline(json.loads(path.read_text(encoding="utf-8")))
    assert "timeline-" not in job.said(), job.said()  # no part is missing
    for node in nodes:
        node.check_clean()


def ask(ctl, *command):
    """The answer, which came in time, in JSON and for people."""
    begun_ns = time.monotonic_ns()
    reply = ctl.json(*command)
    check_prompt("hvdctl answered", time.monotonic_ns() - begun_ns, ANSWER_NS)
    done = ctl.run(*command)
    assert done.returncode == 0, done
    return reply, done.stderr


def test_a_node_that_is_cut_off_is_named_and_the_rest_is_told(job):
    there, here = job.nodes
    ctl, name = ctl_on(job, here)
    there.cut()
    for command in (["job", "ranks", name], ["stalls", name], ["job", "list"], ["nodes"]):
        reply, said = ask(ctl, *command)
        row, = [row for row in reply["job_nodes"] if not row["answered"]]
        assert row["name"] == there.name and there.address in row["text"], row
        assert row["text"].endswith(("did not answer within 0.8 s", "is lost, or has ended already")), row
        assert said.startswith(f"hvdctl: job '{name}': node 0 (n1) at {there.address}:") and said.count("\n") == 1, said
        if "ranks" in reply:
            assert [rank["rank"] for rank in reply["ranks"]] == job.ranks_of(here), reply
    there.heal()
