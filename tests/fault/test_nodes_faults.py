# SPDX-License-Identifier: Apache-2.0
"""What several nodes can suffer: a rank, an engine, a daemon is killed, the cable is cut, strangers knock. Every rank of every node is
told in time who is to blame, or notices nothing; and nothing is left on any node."""
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

import pytest

from hvt import Daemon, Status, check_prompt, new_keys, procs, program, scaled, sockets, wait_until, wire
from hvt.build import BUILD
from hvt.crowd import crowd
from hvt.namespaces import mount
from hvt.spread import SpreadJob

LOST_NS = 1_000_000_000
SILENT_NS = 2_000_000_000
SILENCE_NS = 5_000_000_000  # engine-silence
STEADY_NS = 300_000_000  # from one sum to the next, where nothing disturbs the ranks
ENDED_NS = 8_000_000_000  # hvdrun's agents give a hvdd 7 s to end
ENGINE_PORT = 9631  # of the range, the last one that is free
MESH_PORT = 9600  # the first one
FAULTS_S = 8  # longer than any of the times after which a gate or a node is taken for gone
SSH_LOST = (Status.ERR_RANK_LOST, Status.ERR_JOB_STOPPED)  # its agent ends the ranks, and then hvdd: whichever news is first


def check_over(job):
    """Ends what is left of it; then there is nothing."""
    for rank in job.ranks:
        rank.stop(20)
    job.await_end()
    for node in job.nodes:
        node.check_clean(10)


@contextlib.contextmanager
def spread(nodes, slots):
    """A job, of which nothing is left afterwards."""
    job = SpreadJob(nodes, slots)
    job.check_usable()
    yield job
    check_over(job)


@pytest.fixture
def job(make_nodes):
    """Two ranks on each of two nodes."""
    with spread(make_nodes(2, ssh=True), (2, 2)) as running:
        yield running


def begin(job, elements=1024):
    """The ranks add up until something happens."""
    for rank in job.ranks:
        rank.post("loop", name="steady", for_ms=int(scaled(60) * 1000), elements=elements, until_stdin=True)
    check_undisturbed(job, 0.3)


def check_undisturbed(job, seconds):
    """No rank stops adding up meanwhile."""
    time.sleep(seconds)
    for rank in job.ranks:
        assert not rank.has_reply(), (rank.collect(), job.said())


def end(job):
    """They have all added up something, and stop. How long the longest sum took, in ns."""
    for rank in job.ranks:
        rank.post("stop")
    worst_ns = 0
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > 0, (reply, job.said())
        assert rank.collect()["status"] == Status.OK
        worst_ns = max(worst_ns, reply["worst_ns"])
    return worst_ns


def end_steady(job):
    """Nothing has held the ranks up since the first sum."""
    check_prompt("the next sum came", end(job), STEADY_NS)


def told(job, ranks, at_ns, status, words):
    """What ended the ranks' ops, with this status or one of them; after how many ns the last one knew."""
    last_ns, statuses = 0, status if isinstance(status, tuple) else (status,)
    for rank in ranks:
        outcome = job.ranks[rank].collect_outcome()
        print(f"rank {rank} after {(outcome.at_ns - at_ns) / 1e6:.1f} ms: {outcome.status.name}: {outcome.text}")
        assert outcome.status in statuses, outcome
        for word in words:
            assert re.search(rf"\b{word}\b", outcome.text), f"{word!r} is not in: {outcome.text}"
        last_ns = max(last_ns, outcome.at_ns - at_ns)
        wait_until(lambda: job.ranks[rank].state().status in statuses, f"the session of rank {rank} to end", 1)  # pylint: disable=cell-var-from-loop
    return last_ns


def check_told(*arguments):
    """Of something that can be seen."""
    check_prompt("the ranks were told", told(*arguments), LOST_NS)


def check_told_of_silence(*arguments):
    """Of something that cannot."""
    check_prompt("the ranks were told", told(*arguments), SILENT_NS)


# ---- processes ----

def listen(job, node, *command):
    """A subscriber on a node, to the hvdd there."""
    ctl = job.ctl_of(job.ranks_of(node)[0])
    process = node.popen(command, env=ctl.environment, text=True, stdout=subprocess.PIPE)
    assert process.stdout.readline()  # it has subscribed
    return process


@pytest.mark.parametrize("what", ["a rank", "an engine"])
def test_subscribers_on_every_node_hear_what_a_job_has_lost(job, what):
    """On the others no rank of their own is to blame; each ends because of what it was told, which the subscriber hears first."""
    first, second = job.nodes
    name = job.ctl_of(0).json("jobs")["jobs"][0]["job"]
    events, watch = listen(job, first, program("hvdctl"), "events", "--json"), listen(job, first, BUILD / "examples/watch", name)
    begin(job)
    if what == "a rank":
        job.ranks[3].kill()
        expected, words = ("rank-lost", 3), r"rank 3 .*SIGKILL"
    else:
        os.kill(job.process_of(second, "hvdd-engine"), signal.SIGKILL)
        expected, words = ("job-broken", -1), r"n2\b.*engine|engine.*n2\b"
    event = next(event for event in map(json.loads, events.stdout) if event["event"] in ("rank-lost", "job-broken"))
    assert (event["event"], event["rank"], event["pid"], event["job"]) == (*expected, 0, name) and re.search(words, event["text"]), event
    assert re.search(words, watch.stdout.readline()) and watch.wait(scaled(20)) == 1
    events.kill()
    events.wait(scaled(20))
    told(job, job.ranks_of(first), 0, (Status.ERR_RANK_LOST, Status.ERR_NODE_LOST, Status.ERR_JOB_STOPPED), [])


@pytest.mark.parametrize("victim, elements", [(0, 1024), (3, 1 << 20)])
def test_a_killed_rank_is_named_on_every_node(job, victim, elements):
    begin(job, elements)
    at_ns = job.ranks[victim].kill()
    others = [rank for rank in range(4) if rank != victim]
    check_told(job, others, at_ns, Status.ERR_RANK_LOST, [f"rank {victim}", "SIGKILL", job.node_of(victim).name])


def test_a_node_that_goes_with_its_last_rank_is_not_blamed_for_it(make_nodes):
    """Its connections end before the news of the rank's end has come."""
    nodes = make_nodes(3, ssh=True)
    with spread(nodes, (1, 1, 1)) as job:
        begin(job, elements=16)
        at_ns = job.ranks[2].kill()
        check_told(job, [0, 1], at_ns, Status.ERR_RANK_LOST, ["rank 2", "SIGKILL", "n3"])


def test_a_rank_that_is_killed_before_the_engines_are_connected_is_named(make_nodes):
    nodes = make_nodes(2, ssh=True)
    nodes[1].drop_port(ENGINE_PORT)
    job = SpreadJob(nodes, (1, 2))
    job.ranks[0].post_wait(job.ranks[0].submit("barrier"))
    at_ns = job.ranks[2].kill()
    check_told(job, [0], at_ns, Status.ERR_RANK_LOST, ["rank 2", "SIGKILL"])
    check_over(job)


@pytest.fixture
def connecting(make_nodes):
    """The nodes have met, and all ranks are in a barrier; the first engine cannot reach the second one."""
    nodes = make_nodes(2, ssh=True)
    nodes[1].drop_port(ENGINE_PORT)
    job = SpreadJob(nodes, (1, 2), "--log-level", "info")
    for rank in job.ranks:
        rank.post_wait(rank.submit("barrier"), 20)
    wait_until(lambda: job.said().count(" rendezvous nodes-met: ") == 2, "both engines to know each other")
    assert " nodes-connected: " not in job.said()
    yield job
    check_over(job)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_an_engine_that_is_killed_before_the_engines_are_connected_is_named(connecting, victim):
    lost, other = connecting.nodes[victim], connecting.nodes[1 - victim]
    at_ns = time.monotonic_ns()
    os.kill(connecting.process_of(lost, "hvdd-engine"), signal.SIGKILL)
    check_told(connecting, connecting.ranks_of(lost), at_ns, Status.ERR_ENGINE_LOST, [])
    check_told(connecting, connecting.ranks_of(other), at_ns, Status.ERR_NODE_LOST, ["engine", lost.name, "SIGKILL"])


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_an_agent_that_is_killed_before_the_engines_are_connected_is_missed(connecting, victim):
    """Its hvdd ends at once, and what it says last is heard."""
    lost, other = connecting.nodes[victim], connecting.nodes[1 - victim]
    at_ns = time.monotonic_ns()
    os.kill(connecting.agent_of(lost), signal.SIGKILL)
    statuses = (Status.ERR_JOB_STOPPED, Status.ERR_RANK_LOST, Status.ERR_NODE_LOST)
    check_told(connecting, connecting.ranks_of(other), at_ns, statuses, [lost.name, "hvdd|SIGKILL|agent"])
    wait_until(lambda: f"hvdrun: lost the agent on {lost.name}: " in connecting.said(), connecting.said)


def test_ssh_that_is_killed_before_the_engines_are_connected_ends_the_ranks_behind_it(connecting):
    first, second = connecting.nodes
    at_ns = time.monotonic_ns()
    os.kill(connecting.process_of(first, "ssh"), signal.SIGKILL)
    check_told(connecting, connecting.ranks_of(first), at_ns, SSH_LOST, [second.name, "SIGTERM|hvdd"])
    wait_until(lambda: "hvdrun: lost the agent on n2: ssh was killed by signal 9 (SIGKILL)" in connecting.said(), connecting.said)


def check_connects(job):
    """When the firewall is gone."""
    job.nodes[1].heal()
    for rank in job.ranks:
        assert rank.collect_outcome().ok, job.said()


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_a_daemon_that_is_killed_before_the_engines_are_connected_is_not_missed(connecting, victim):
    os.kill(connecting.process_of(connecting.nodes[victim], "hvdd"), signal.SIGKILL)
    wait_until(lambda: "nobody can attach any more" in connecting.said(), "hvdrun to see it")
    check_connects(connecting)
    connecting.check_usable()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["hvdd", "hvdd-gate"])
def test_daemons_that_stand_still_before_the_engines_are_connected_are_not_missed(connecting, name):
    with contextlib.ExitStack() as stack:
        for node in connecting.nodes:
            stack.enter_context(stopped(connecting.process_of(node, name)))
        time.sleep(3)  # longer than hvdd gives a gate, and gates a node
        check_connects(connecting)
    connecting.check_usable()


def check_killed_for_silence(job, victim, at_ns):
    """The engine of that node stood still, and its hvdd has killed it: so say those of its ranks and of the others that wait."""
    lost = job.nodes[victim]
    others = [rank for rank in range(job.size) if job.node_of(rank) is not lost]
    last_ns = told(job, others, at_ns, Status.ERR_NODE_LOST, ["engine", lost.name, "SIGKILL"])
    last_ns = max(last_ns, told(job, job.ranks_of(lost), at_ns, Status.ERR_ENGINE_LOST, []))
    check_prompt("the engine was killed and missed", last_ns - SILENCE_NS, 1_100_000_000)


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_that_stands_still_before_the_engines_are_connected_is_named_when_hvdd_has_killed_it(connecting, victim):
    """Nothing else keeps the engines from each other meanwhile."""
    at_ns = time.monotonic_ns()
    os.kill(connecting.process_of(connecting.nodes[victim], "hvdd-engine"), signal.SIGSTOP)
    connecting.nodes[1].heal()
    check_killed_for_silence(connecting, victim, at_ns)


@pytest.mark.soak
def test_a_cable_that_is_cut_before_the_engines_are_connected_is_named_on_both_sides(connecting):
    """Each node gives up connecting when it has tried for 10 s, of which some have passed."""
    first, second = connecting.nodes
    at_ns = time.monotonic_ns()
    second.cut()
    last_ns = max(told(connecting, connecting.ranks_of(here), at_ns, Status.ERR_NODE_LOST, [there.name])
                  for here, there in ((first, second), (second, first)))
    check_prompt("the ranks were told", last_ns, 10_100_000_000)
    second.heal()


@pytest.fixture
def waiting(make_nodes):
    """The ranks of n1 and n2 are in a barrier; that of n3 has not opened, so that the nodes have not met."""
    job = SpreadJob(make_nodes(3, ssh=True), (1, 1, 1), late=[2])
    for rank in job.ranks[:2]:
        rank.post_wait(rank.submit("barrier"))
    ctl = job.ctl_of(0)
    wait_until(lambda: [row["name"] for row in ctl.json("nodes")["nodes"] if row["jobs"]] == ["n1", "n2"], "both nodes to wait")
    yield job
    check_over(job)


def test_a_rank_that_is_killed_while_its_node_waits_for_another_one_is_named(waiting):
    at_ns = waiting.ranks[1].kill()
    check_told(waiting, [0], at_ns, Status.ERR_RANK_LOST, ["rank 1", "SIGKILL"])


def test_an_engine_that_is_killed_while_its_node_waits_for_another_one_is_named(waiting):
    at_ns = time.monotonic_ns()
    os.kill(waiting.process_of(waiting.nodes[1], "hvdd-engine"), signal.SIGKILL)
    check_told(waiting, [1], at_ns, Status.ERR_ENGINE_LOST, [])
    check_told(waiting, [0], at_ns, Status.ERR_NODE_LOST, ["engine", "n2", "SIGKILL"])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_daemon_that_is_killed_while_its_node_waits_for_another_one_is_named(waiting, victim):
    """No other one takes its place. That of n1 is the one by which the nodes meet."""
    lost = waiting.nodes[victim]
    at_ns = time.monotonic_ns()
    os.kill(waiting.process_of(lost, "hvdd"), signal.SIGKILL)
    check_told(waiting, [victim], at_ns, Status.ERR_JOB_STOPPED, ["hvdd", lost.name])
    check_told(waiting, [1 - victim], at_ns, Status.ERR_NODE_LOST, ["hvdd", lost.name])


def test_an_agent_that_is_killed_while_its_node_waits_for_another_one_is_missed(waiting):
    second = waiting.nodes[1]
    at_ns = time.monotonic_ns()
    os.kill(waiting.agent_of(second), signal.SIGKILL)
    statuses = (Status.ERR_JOB_STOPPED, Status.ERR_RANK_LOST, Status.ERR_NODE_LOST)
    check_told(waiting, [0], at_ns, statuses, [f"{second.name}|rank 1", "hvdd|SIGKILL|agent"])


@pytest.mark.parametrize("what", ["hvdd", "agent"])
def test_a_host_that_is_lost_before_its_rank_opens_is_named_to_those_that_wait(waiting, what):
    third = waiting.nodes[2]
    pid = waiting.agent_of(third) if what == "agent" else waiting.process_of(third, what)
    at_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    check_told(waiting, [0, 1], at_ns, Status.ERR_NODE_LOST, [third.name, what])


@pytest.mark.parametrize("victim", [1, 2])
def test_ssh_that_is_killed_while_nodes_wait_ends_the_ranks_behind_it(waiting, victim):
    """The rank of n2 waits, that of n3 has not opened."""
    lost = waiting.nodes[victim]
    at_ns = time.monotonic_ns()
    os.kill(waiting.ssh_to(lost), signal.SIGKILL)
    check_told(waiting, [0, 1][:victim], at_ns, (Status.ERR_NODE_LOST, *SSH_LOST), [f"{lost.name}|rank {victim}", "SIGTERM|hvdd|ssh"])
    wait_until(lambda: f"hvdrun: lost the agent on {lost.name}: ssh was killed by signal 9 (SIGKILL)" in waiting.said(), waiting.said)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_daemon_that_is_killed_before_any_rank_opens_is_named_to_those_that_come(make_nodes, victim):
    """Its own rank exits with 0 without a word. That of n1 is the one by which the nodes meet."""
    nodes = make_nodes(2, ssh=True)
    script = (f'touch up.$HVD_RANK; until [ -e go ]; do sleep 0.1; done; [ $HVD_RANK = {victim} ] && exit 0; '
              'date +%s%N; "$PERF" -o barrier -i 1; code=$?; date +%s%N; exit $code')
    with nodes[0].popen([program("hvdrun"), "-H", "n1:1,n2:1", "--no-prefix", "-x", f"PERF={program('hvd-perf')}", "sh", "-c", script],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        wait_until(lambda: all((nodes.shared / f"up.{rank}").exists() for rank in (0, 1)), "the ranks to run", 20)
        os.kill(next(pid for pid, line in nodes[victim].processes().items() if procs.name(pid) == "hvdd" and "--private" in line),
                signal.SIGKILL)
        (nodes.shared / "go").touch()
        out, err = launcher.communicate(timeout=60)
    lost = rf"n{victim + 1}: the private hvdd \(pid \d+\) was killed by signal 9 \(SIGKILL\)"
    assert re.search(rf"HVD_ERR_NODE_LOST: (hvd_\w+: )?{lost}; ranks there cannot take part in the job any more", err), err
    assert f"Process name: {1 - victim}" in err, err
    began_ns, ended_ns = (int(line) for line in out.split("\n") if line.isdigit())
    check_prompt("the rank that came was told", ended_ns - began_ns, LOST_NS)
    for node in nodes:
        node.check_clean(10)


def test_a_cable_that_is_cut_while_nodes_wait_is_named_when_hvdrun_misses_the_host(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 1), "--silence-time", "2", late=[1])
    job.ranks[0].post_wait(job.ranks[0].submit("barrier"))
    at_ns = time.monotonic_ns()
    nodes[1].cut()
    told(job, [0], at_ns, Status.ERR_NODE_LOST, ["n2", "silence-time|ssh"])
    nodes[1].heal()
    check_over(job)


def test_a_cable_that_is_cut_while_a_node_waits_with_others_is_named_on_both_sides(waiting):
    """n1 is the node by which they meet."""
    at_ns = time.monotonic_ns()
    waiting.nodes[1].cut()
    check_told_of_silence(waiting, [0], at_ns, Status.ERR_NODE_LOST, ["n2"])
    check_told_of_silence(waiting, [1], at_ns, Status.ERR_NODE_LOST, ["n1"])
    waiting.nodes[1].heal()


@pytest.mark.parametrize("what", ["0 hvdd", pytest.param("1 hvdd", marks=pytest.mark.soak), pytest.param("0 hvdd-gate", marks=pytest.mark.soak),
                                  pytest.param("1 hvdd-gate", marks=pytest.mark.soak)])
def test_a_process_that_stands_still_while_its_node_waits_with_others_is_missed_by_them(waiting, what):
    """Its own ranks are told when it goes on."""
    victim = int(what[0])
    at_ns = time.monotonic_ns()
    with fault_of(waiting, what):
        check_told_of_silence(waiting, [1 - victim], at_ns, Status.ERR_NODE_LOST, [waiting.nodes[victim].name])
    told(waiting, [victim], at_ns, (Status.ERR_NODE_LOST, Status.ERR_JOB_STOPPED), [])


def test_gates_that_are_killed_while_nodes_wait_are_started_anew_and_the_nodes_meet(waiting):
    for node in waiting.nodes[:2]:
        os.kill(waiting.process_of(node, "hvdd-gate"), signal.SIGKILL)
    last = waiting.ranks[2]
    time.sleep(2)  # longer than a node may be missing
    last.post("open")
    assert last.collect_outcome().ok, waiting.said()
    last.post_wait(last.submit("barrier"))
    for rank in waiting.ranks:
        assert rank.collect_outcome().ok, waiting.said()


@pytest.mark.soak
def test_a_daemon_that_stands_still_for_good_while_its_node_waits_is_named_to_its_own_ranks(waiting):
    at_ns = time.monotonic_ns()
    with fault_of(waiting, "1 hvdd"):
        last_ns = told(waiting, [1], at_ns, Status.ERR_JOB_STOPPED, ["hvdd", "n2", "has said nothing for 10 s"])
    check_prompt("the rank was told", last_ns, 11_000_000_000)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["0 hvdd", "1 hvdd", "cable"])
def test_a_host_that_is_silent_for_good_before_its_rank_opens_is_named_to_the_one_that_waits(make_nodes, what):
    victim = int(what[0]) if what != "cable" else 1
    job = SpreadJob(make_nodes(2, ssh=True), (1, 1), "--silence-time", "60", late=[victim])
    waits = job.ranks[1 - victim]
    waits.post_wait(waits.submit("barrier"), 30)
    wait_until(lambda: len([row for row in job.ctl_of(0).json("nodes")["nodes"] if row["jobs"]]) == 1, "the node to wait")
    at_ns = time.monotonic_ns()
    with fault_of(job, what):
        last_ns = told(job, [1 - victim], at_ns, Status.ERR_NODE_LOST, [job.nodes[victim].name])
    check_prompt("the rank was told", last_ns, 13_000_000_000)
    check_over(job)


def test_a_rank_whose_daemon_is_gone_is_told_that_it_was_hvdruns(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 1), late=[0, 1])
    os.kill(job.process_of(nodes[1], "hvdd"), signal.SIGKILL)
    wait_until(lambda: "nobody can attach any more" in job.said(), "hvdrun to see it")
    job.ranks[1].post("open")
    outcome = job.ranks[1].collect_outcome()
    assert outcome.status == Status.ERR_NO_DAEMON and "the private one that hvdrun started for this job is gone" in outcome.text, outcome
    check_over(job)


def test_a_job_that_is_stopped_while_its_nodes_wait_is_so_on_all_of_them(waiting):
    ctl = waiting.ctl_of(1)
    name = ctl.json("jobs")["jobs"][0]["job"]
    at_ns = time.monotonic_ns()
    ctl.run("job", "stop", name)
    check_told(waiting, [1], at_ns, Status.ERR_JOB_STOPPED, ["stopped by uid"])
    check_told(waiting, [0], at_ns, Status.ERR_JOB_STOPPED, ["n2", "stopped by uid"])


def test_a_gate_that_stands_still_goes_with_its_daemon(waiting):
    for name, number in (("hvdd-gate", signal.SIGSTOP), ("hvdd", signal.SIGKILL)):
        os.kill(waiting.process_of(waiting.nodes[1], name), number)
    at_ns = time.monotonic_ns()
    check_told(waiting, [0], at_ns, Status.ERR_NODE_LOST, ["hvdd", "n2"])
    wait_until(lambda: "hvdd-gate" not in str(waiting.nodes[1].processes()), "the gate to end", 5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_exits_with_zero_before_it_opens_is_named_on_the_other_node(make_nodes, rank):
    """Nobody on its own node knows the job."""
    nodes = make_nodes(2, ssh=True)
    script = f'[ $HVD_RANK = {rank} ] && exit 0; sleep 0.3; date +%s%N; "$PERF" -o barrier -i 1; code=$?; date +%s%N; exit $code'
    done = nodes[0].run([program("hvdrun"), "-H", "n1:1,n2:1", "--no-prefix", "-x", f"PERF={program('hvd-perf')}", "sh", "-c", script],
                        timeout=60)
    said = rf"rank {rank} \(pid \d+\) on n{rank + 1} exited with code 0 before all ranks of job '[^']+' had called hvd\.init"
    assert re.search(said, done.stderr), done.stderr
    assert f"Process name: {1 - rank}" in done.stderr, done.stderr
    began_ns, ended_ns = (int(line) for line in done.stdout.split("\n") if line.isdigit())
    check_prompt("the rank that waited was told", ended_ns - began_ns, LOST_NS)
    for node in nodes:
        node.check_clean(10)


def place(rank, local_rank, local_size, node):
    """What a launcher says to one of three ranks on two nodes."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return {f"HVD_{name}": str(value) for name, value in zip(names, (rank, 3, local_rank, local_size, node, 2))}


@contextlib.contextmanager
def two_daemons(tmp_path, *, start_timeout="600s", **of_the_second):
    """hvdds of whoever: the first one has the rendezvous."""
    options = {"mesh-key": new_keys(tmp_path / "mesh"), "port-range": "9664-9695", "start-timeout": start_timeout}
    with Daemon(options=options | {"mesh-listen": "127.0.0.1:0"}) as first:
        port = (first.address / "mesh.port").read_text(encoding="ascii").strip()
        more = {name.replace("_", "-"): value for name, value in of_the_second.items()}
        with Daemon(options=options | {"mesh-join": f"127.0.0.1:{port}"} | more) as second:
            first.allow("no-job", "job-not-met")
            yield first, second


def wait_in_a_barrier(first):
    """The rank of the first node, which is complete."""
    rank = first.rank(environment=place(2, 0, 1, 1))
    rank.open("early")
    op = rank.submit("barrier")
    wait_until(lambda: first.lines("node-complete"), "the node to be complete")
    return rank, op


def check_waiting_is_told(waiting, at_ns, status, words):
    """The rank of wait_in_a_barrier(): the other node's news ends its wait."""
    rank, op = waiting
    outcome = rank.outcome(op)
    print(f"after {(outcome.at_ns - at_ns) / 1e6:.1f} ms: {outcome.status.name}: {outcome.text}")
    check_prompt("the rank that waits was told", outcome.at_ns - at_ns, LOST_NS)
    assert outcome.status == status and re.search(words, outcome.text), outcome


def test_ranks_may_wait_longer_than_their_hvdds_would(tmp_path):
    longer = {"HVD_START_TIMEOUT": "30"}
    with two_daemons(tmp_path, start_timeout="1s") as (first, second):
        waits = second.rank(environment=longer | place(0, 0, 1, 0) | {"HVD_SIZE": "2"})
        waits.open("wide")
        op = waits.submit("barrier")
        time.sleep(scaled(1) + 6)  # longer than hvdd and its gate would give it
        last = first.rank(environment=longer | place(1, 0, 1, 1) | {"HVD_SIZE": "2"})
        last.open("wide")
        last.post_wait(last.submit("barrier"))
        assert waits.outcome(op).ok and last.collect_outcome().ok


def test_a_rank_that_is_killed_before_its_node_is_complete_is_named_on_the_other_node(tmp_path):
    """Whoever has started the hvdds."""
    with two_daemons(tmp_path) as (first, second):
        lost = second.rank(environment=place(0, 0, 2, 0))
        lost.open("early")
        waiting = wait_in_a_barrier(first)
        second.allow("rank-lost")
        at_ns = time.monotonic_ns()
        os.kill(lost.pid, signal.SIGKILL)
        check_waiting_is_told(waiting, at_ns, Status.ERR_RANK_LOST, rf"rank 0 \(pid {lost.pid}\) was killed by signal 9 \(SIGKILL\)")


@pytest.mark.parametrize("number, after_ns", [(signal.SIGKILL, 0), pytest.param(signal.SIGSTOP, SILENCE_NS, marks=pytest.mark.soak)],
                         ids=["killed", "still"])
def test_an_engine_that_is_lost_before_its_node_is_complete_is_named_on_the_other_node(tmp_path, number, after_ns):
    with two_daemons(tmp_path) as (first, second):
        second.rank(environment=place(0, 0, 2, 0)).open("early")
        rank, op = wait_in_a_barrier(first)
        second.allow("engine-silent", "engine-killed", "engine-ended", "engine-lost")
        at_ns = time.monotonic_ns()
        os.kill(second.engine_of("early"), number)
        outcome = rank.wait(op, 20)
        print(f"after {(outcome.at_ns - at_ns) / 1e6:.1f} ms: {outcome.status.name}: {outcome.text}")
        check_prompt("the rank that waits was told", outcome.at_ns - at_ns - after_ns, 1_100_000_000 if after_ns else LOST_NS)
        assert outcome.status == Status.ERR_NODE_LOST and re.search("engine.*SIGKILL", outcome.text), outcome


def test_a_rank_that_dies_while_its_gate_stands_still_is_missed_on_the_other_node(tmp_path):
    """hvdd kills the gate, and with it goes what it should have said. Both nodes are complete, and wait for a third one."""
    with two_daemons(tmp_path) as (first, second):
        lost = second.rank(environment=place(0, 0, 1, 0))
        lost.open("early")
        rank, op = wait_in_a_barrier(first)
        wait_until(lambda: [row["jobs"] for row in first.ctl.json("nodes")["nodes"]] == ["early"] * 2, "both nodes to wait")
        second.allow("rank-lost", "gate-ended", "gate-killed", "mesh-not-joined")
        at_ns = time.monotonic_ns()
        for pid, number in ((second.gate(), signal.SIGSTOP), (lost.pid, signal.SIGKILL)):
            os.kill(pid, number)
        outcome = rank.wait(op, 20)
        print(f"after {(outcome.at_ns - at_ns) / 1e6:.1f} ms: {outcome.status.name}: {outcome.text}")
        check_prompt("the rank that waits was told", outcome.at_ns - at_ns, 13_000_000_000)
        assert outcome.status == Status.ERR_NODE_LOST and re.search("is lost.*its hvdd-gate has begun anew", outcome.text), outcome


def test_a_rank_that_breaks_the_protocol_before_its_node_is_complete_is_named_on_the_other_node(tmp_path):
    with two_daemons(tmp_path) as (first, second), wire.Raw(second.attach_path) as liar:
        liar.send(wire.attach_request("early", 0, 3, extra=wire.message((7, 0), (8, 2))))
        assert liar.attach_reply().status == Status.OK
        waiting = wait_in_a_barrier(first)
        second.allow("rank-ended")
        at_ns = time.monotonic_ns()
        liar.send(b"nonsense")
        check_waiting_is_told(waiting, at_ns, Status.ERR_RANK_LOST, "rank 0 .*broke the protocol: ")


def test_a_job_that_is_stopped_before_its_node_is_complete_is_so_on_the_other_node(tmp_path):
    with two_daemons(tmp_path) as (first, second):
        second.rank(environment=place(0, 0, 2, 0)).open("early")
        waiting = wait_in_a_barrier(first)
        at_ns = time.monotonic_ns()
        second.ctl.run("job", "stop", "early")
        check_waiting_is_told(waiting, at_ns, Status.ERR_JOB_STOPPED, rf"on {socket.gethostname()}: job 'early' was stopped by uid")


def test_an_engine_that_cannot_listen_is_named_on_the_other_node(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with two_daemons(tmp_path, port_range=f"{port}-{port}") as (first, second):
            waiting = wait_in_a_barrier(first)
            second.rank(environment=place(0, 0, 2, 0)).open("early")
            second.allow("no-job")
            last = second.rank(environment=place(1, 1, 2, 0))
            at_ns = time.monotonic_ns()
            last.post("open", job="early")
            check_waiting_is_told(waiting, at_ns, Status.ERR_LIMIT, r"\(pid \d+\) cannot listen for the job's other nodes: ")
            last.collect_outcome()


@pytest.mark.parametrize("victim, elements", [(0, 1024), (1, 1 << 20)])
def test_a_killed_engine_is_missed_on_its_node_and_its_node_on_the_others(job, victim, elements):
    lost, other = job.nodes[victim], job.nodes[1 - victim]
    begin(job, elements)
    at_ns = time.monotonic_ns()
    os.kill(job.process_of(lost, "hvdd-engine"), signal.SIGKILL)
    check_told(job, job.ranks_of(lost), at_ns, Status.ERR_ENGINE_LOST, [])
    check_told(job, job.ranks_of(other), at_ns, Status.ERR_NODE_LOST, [lost.name])
    job.reopen()
    job.check_usable()


@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_that_stands_still_is_missed_by_the_others_and_told_so_when_it_goes_on(job, victim):
    """Its own ranks wait meanwhile: hvdd gives it longer than the other nodes do. The first one has the root."""
    still, other = job.nodes[victim], job.nodes[1 - victim]
    begin(job)
    engine = job.process_of(still, "hvdd-engine")
    at_ns = time.monotonic_ns()
    os.kill(engine, signal.SIGSTOP)
    check_told_of_silence(job, job.ranks_of(other), at_ns, Status.ERR_NODE_LOST, [still.name])
    at_ns = time.monotonic_ns()
    os.kill(engine, signal.SIGCONT)
    check_told(job, job.ranks_of(still), at_ns, Status.ERR_NODE_LOST, ["n1|n2"])
    job.reopen()
    job.check_usable()


def test_a_killed_agent_ends_its_ranks_and_its_node_is_named_on_the_others(job):
    """Its hvdd sees that its parent is gone, and stops the job; or the first of its ranks is missed before that."""
    first, second = job.nodes
    begin(job)
    at_ns = time.monotonic_ns()
    os.kill(job.agent_of(second), signal.SIGKILL)
    check_told(job, job.ranks_of(first), at_ns, (Status.ERR_JOB_STOPPED, Status.ERR_RANK_LOST), [second.name, "hvdd|SIGKILL"])


def test_two_jobs_share_their_nodes_and_one_does_not_notice_the_end_of_the_other(make_nodes):
    nodes = make_nodes(2, ssh=True)
    with spread(nodes, (1, 1)) as steady:
        begin(steady)
        usual = [set(node.processes()) for node in nodes]
        other = SpreadJob(nodes, (1, 2))
        begin(other)
        at_ns = time.monotonic_ns()
        engine = next(pid for pid, line in nodes[1].processes().items() if pid not in usual[1] and "hvdd-engine" in line)
        os.kill(engine, signal.SIGKILL)
        check_told(other, [0], at_ns, Status.ERR_NODE_LOST, ["n2"])
        other.close()
        wait_until(lambda: [set(node.processes()) for node in nodes] == usual, "the other job to be gone from both nodes", 10)
        check_undisturbed(steady, 0)
        end_steady(steady)


@pytest.mark.parametrize("number, seconds", [(signal.SIGKILL, 1), (signal.SIGSTOP, 1),
                                             pytest.param(signal.SIGSTOP, FAULTS_S, marks=pytest.mark.soak)],
                         ids=["dead", "still", "still-for-long"])
def test_running_steps_go_on_while_every_daemon_is_dead_or_stands_still(job, number, seconds):
    """With a daemon that stands still, its agent does so too."""
    begin(job)
    pids = [job.process_of(node, name) for name in ("hvdd-gate", "hvdd") for node in job.nodes]
    pids += [job.agent_of(node) for node in job.nodes] if number == signal.SIGSTOP else []
    for pid in pids:
        os.kill(pid, number)
    check_undisturbed(job, seconds)
    end_steady(job)
    for pid in pids if number == signal.SIGSTOP else []:
        os.kill(pid, signal.SIGCONT)
    job.check_usable()


def test_a_rank_that_stands_still_is_named_on_every_node_and_the_others_wait(job):
    begin(job)

    def stalled(ctl, name):
        return [(row["tensor"], row["ready"], [(rank["rank"], rank["process"]) for rank in row["missing"]])
                for row in ctl.json("stalls", name)["stalls"]]

    at_ns = time.monotonic_ns()
    with stopped(job.ranks[3].pid):
        for node in job.nodes:
            ctl = job.ctl_of(job.ranks_of(node)[0])
            name = ctl.json("jobs")["jobs"][0]["job"]
            wait_until(lambda: stalled(ctl, name) == [("steady", [0, 1, 2], [(3, "T")])],  # pylint: disable=cell-var-from-loop
                       lambda: f"the rank to be named: {stalled(ctl, name)}")  # pylint: disable=cell-var-from-loop
        check_prompt("both nodes named the rank", time.monotonic_ns() - at_ns, LOST_NS)
    end(job)


def test_a_node_without_room_on_its_disk_is_named_and_nothing_is_left(make_nodes):
    nodes = make_nodes(2, ssh=True)
    folder = nodes[1].path(nodes[1].runtime)
    nodes[1].call(mount, "tmpfs", nodes[1].runtime, "tmpfs", 0, "mode=700,size=4k")
    (folder / "full").write_bytes(bytes(4096))
    done = nodes[1].run([program("hvdrun"), "-H", "n1:1,n2:1", "touch", "ran"])
    assert done.returncode == 1 and not (nodes.shared / "ran").exists()
    assert re.fullmatch(r"hvdrun: n2: cannot write /run/user/0/hvdrun-\w+/mesh.key: No space left on device\n", done.stderr), done.stderr
    for node in nodes:
        node.check_clean(10)
    assert os.listdir(folder) == ["full"]


# ---- the way to a host, and the end of a job ----

def test_ssh_that_is_killed_ends_the_ranks_behind_it_which_are_named_on_the_others(job):
    first, second = job.nodes
    begin(job, elements=1 << 18)
    at_ns = time.monotonic_ns()
    os.kill(job.process_of(first, "ssh"), signal.SIGKILL)
    check_told(job, job.ranks_of(first), at_ns, SSH_LOST, [second.name, "SIGTERM|hvdd"])
    for rank in job.ranks_of(first):
        job.ranks[rank].stop()
    assert job.await_end() != 0
    assert "hvdrun: lost the agent on n2: ssh was killed by signal 9 (SIGKILL); it ends its ranks\n" in job.said(), job.said()


@pytest.mark.soak
def test_ssh_that_stands_still_ends_the_ranks_behind_it_which_are_named_on_the_others(make_nodes):
    """hvdrun and the agent there miss each other."""
    nodes = make_nodes(2, ssh=True)
    silence_s = round(scaled(2))
    job = SpreadJob(nodes, (1, 2), "--silence-time", str(silence_s))
    job.check_usable()
    begin(job, elements=1 << 18)
    at_ns = time.monotonic_ns()
    os.kill(job.process_of(nodes[0], "ssh"), signal.SIGSTOP)
    after_ns = told(job, [0], at_ns, SSH_LOST, ["n2", "SIGTERM|hvdd"])
    check_prompt("the rank was told", after_ns - silence_s * 10**9, LOST_NS)
    check_over(job)
    assert job.await_end() != 0 and f"hvdrun: lost the agent on n2: it has said nothing for {silence_s} s (--silence-time)" in job.said()


@pytest.mark.soak
def test_an_agent_that_stands_still_while_ops_run_is_given_up_and_its_ranks_miss_the_others(make_nodes):
    """These have a second to say what they have met, and then they get SIGTERM."""
    nodes = make_nodes(2, ssh=True)
    silence_s, report_s = round(scaled(2)), 1
    job = SpreadJob(nodes, (1, 2), "--silence-time", str(silence_s), "--report-time", str(report_s))
    job.check_usable()
    begin(job)
    at_ns = time.monotonic_ns()
    with stopped(job.agent_of(nodes[1])):
        after_ns = told(job, [1, 2], at_ns, SSH_LOST, ["n1", "SIGTERM|hvdd"])
        check_prompt("the ranks were told", after_ns - (silence_s + report_s) * 10**9, LOST_NS)
    check_over(job)
    assert job.await_end() != 0 and f"hvdrun: lost the agent on n2: it has said nothing for {silence_s} s (--silence-time)" in job.said()


def stop_on_the_second(job, names):
    """SIGSTOP for these processes, which are told."""
    pids = [job.process_of(job.nodes[1], name) for name in names.split(" ")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


@pytest.mark.parametrize("names", ["hvdd", pytest.param("hvdd-engine", marks=pytest.mark.soak)])
def test_what_stands_still_at_the_end_of_a_job_and_goes_on_is_waited_for(make_nodes, names):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 2))
    job.check_usable()
    pids = stop_on_the_second(job, names)
    for rank in job.ranks:
        rank.stop()
    time.sleep(0.3)
    assert job.launcher.poll() is None, job.said()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert job.await_end() == 0, job.said()
    for node in nodes:
        node.check_clean(10)


def test_an_engine_that_stands_still_at_the_end_of_a_job_goes_on_when_its_daemon_is_killed(make_nodes):
    """Nobody else would end it."""
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 2))
    job.check_usable()
    stop_on_the_second(job, "hvdd-engine")
    os.kill(job.process_of(nodes[1], "hvdd"), signal.SIGKILL)
    check_over(job)
    assert job.await_end() == 0, job.said()


@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("names", ["hvdd", "hvdd-engine", "hvdd-engine hvdd"])
def test_what_stands_still_at_the_end_of_a_job_is_ended(make_nodes, names, killed):
    """Also where the ranks were killed, of which an engine that stands still says nothing."""
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 2))
    job.check_usable()
    stop_on_the_second(job, names)
    for rank in job.ranks:
        _ = rank.kill() if killed else rank.stop()
    at_ns = time.monotonic_ns()
    assert job.await_end() == (128 + signal.SIGKILL if killed else 0), job.said()
    check_prompt("hvdrun ended", time.monotonic_ns() - at_ns, ENDED_NS)
    for node in nodes:
        node.check_clean(10)


# ---- the network ----

def test_a_host_that_cannot_reach_the_first_ones_daemon_is_named_and_nothing_runs(make_nodes):
    nodes = make_nodes(2, ssh=True)
    nodes[0].drop_port(MESH_PORT)
    limit_s = scaled(6)
    began_ns = time.monotonic_ns()
    done = nodes[1].run([program("hvdrun"), "-H", "n1:1,n2:1", "--start-timeout", f"{limit_s:g}", "touch", "ran"], timeout=3 * limit_s)
    check_prompt("hvdrun gave up", time.monotonic_ns() - began_ns - round(limit_s * 1e9), 1_000_000_000)
    assert done.returncode == 1 and not (nodes.shared / "ran").exists()
    said = re.match(rf"hvdrun: n2: its hvdd has not reached that of the first host at (\S+):{MESH_PORT} from (\S+) in time; "
                    "is there a firewall", done.stderr)
    assert said and said[1].strip("[]") in nodes[0].addresses() and said[2] in nodes[1].addresses(), done.stderr
    for node in nodes:
        node.check_clean(10)


def test_the_first_ones_daemon_that_is_killed_before_others_have_reached_it_is_named_and_nothing_runs(make_nodes):
    nodes = make_nodes(2, ssh=True)
    nodes[0].drop_port(MESH_PORT)
    with nodes[1].popen([program("hvdrun"), "-H", "n1:1,n2:1", "--start-timeout", "60", "touch", "ran"], stderr=subprocess.PIPE,
                        text=True) as launcher:
        wait_until(lambda: any("--mesh-join" in line for line in nodes[1].processes().values()), "the hvdd of n2 to be there", 20)
        at_ns = time.monotonic_ns()
        os.kill(next(pid for pid, line in nodes[0].processes().items() if procs.name(pid) == "hvdd" and "--private" in line),
                signal.SIGKILL)
        said = launcher.communicate(timeout=60)[1]
    check_prompt("hvdrun gave up", time.monotonic_ns() - at_ns, LOST_NS)
    assert launcher.returncode == 1 and not (nodes.shared / "ran").exists()
    assert re.match(r"hvdrun: n1: the private hvdd \(pid \d+\) was killed by signal 9 \(SIGKILL\) before the ranks were started\n",
                    said), said
    for node in nodes:
        node.check_clean(10)


@pytest.mark.parametrize("fault, elements", [("unplug", 1024), ("cut", 1 << 20), ("in", 1024), ("first in", 1024)])
def test_a_node_that_is_cut_off_is_named_on_both_sides(job, fault, elements):
    """"in": what it sends arrives. "first": the one with the root."""
    first, second = job.nodes
    victim = first if fault.startswith("first") else second
    begin(job, elements)
    at_ns = time.monotonic_ns()
    if fault == "unplug":
        victim.unplug()
    else:
        victim.cut("in" if fault.endswith("in") else "both")
    check_told_of_silence(job, job.ranks_of(first), at_ns, Status.ERR_NODE_LOST, [second.name])
    check_told_of_silence(job, job.ranks_of(second), at_ns, Status.ERR_NODE_LOST, [first.name])
    victim.heal()


def test_a_cable_that_is_cut_for_a_moment_costs_time_alone(job):
    """Less than what counts as a loss: TCP says again what was lost."""
    begin(job)
    job.nodes[1].cut()
    time.sleep(0.2)
    job.nodes[1].heal()
    check_undisturbed(job, 0.5)
    end(job)


@pytest.mark.parametrize("victim", [2, pytest.param(0, marks=pytest.mark.soak)])
def test_a_node_of_three_that_is_cut_off_is_named_by_the_others(make_nodes, victim):
    """The first one has the root."""
    nodes = make_nodes(3, ssh=True)
    others = [number for number in range(3) if number != victim]
    with spread(nodes, (1, 1, 1)) as job:
        begin(job)
        at_ns = time.monotonic_ns()
        nodes.partition([nodes[number] for number in others], [nodes[victim]])
        check_told_of_silence(job, others, at_ns, Status.ERR_NODE_LOST, [nodes[victim].name])
        check_told_of_silence(job, [victim], at_ns, Status.ERR_NODE_LOST, ["|".join(nodes[number].name for number in others)])
        for node in nodes:
            node.heal()


def test_two_nodes_of_three_that_do_not_hear_each_other_blame_each_other_and_not_the_third(make_nodes):
    """n1 misses n3 a beat before n3 misses n1. In between n2, which hears both, is told, and gives its part of the op up."""
    nodes = make_nodes(3, ssh=True)
    with spread(nodes, (1, 1, 1)) as job:
        begin(job, elements=300_000)
        at_ns = time.monotonic_ns()
        nodes[0].cut("in", nodes[2])
        time.sleep(0.28)
        nodes[2].cut("in", nodes[0])
        check_told_of_silence(job, [0, 1], at_ns, Status.ERR_NODE_LOST, ["n3"])
        check_told_of_silence(job, [2], at_ns, Status.ERR_NODE_LOST, ["n1"])
        for node in nodes:
            node.heal()


def test_two_nodes_that_exchange_data_alone_and_do_not_hear_each_other_are_named(make_nodes):
    """n2 and n4 are neighbours neither in the ring of all nodes nor in the tree."""
    nodes = make_nodes(4, ssh=True)
    with spread(nodes, (1, 1, 1, 1)) as job:
        begin(job, elements=16)
        at_ns = time.monotonic_ns()
        nodes.partition(nodes[1:2], nodes[3:])
        check_told_of_silence(job, range(4), at_ns, Status.ERR_NODE_LOST, ["n2|n4"])
        for node in nodes:
            node.heal()


def test_a_node_without_power_is_named_and_the_others_are_left_clean(make_nodes):
    """It comes back empty; what still waits for it then, hears so."""
    nodes = make_nodes(2, ssh=True, bridge=True)
    with spread(nodes, (1, 1)) as job:
        begin(job)
        at_ns = time.monotonic_ns()
        nodes.restart(nodes[1])
        check_told_of_silence(job, [0], at_ns, Status.ERR_NODE_LOST, ["n2"])
        job.ranks[0].stop()
        job.launcher.send_signal(signal.SIGCONT)  # goes to every agent
        assert job.await_end() != 0 and "hvdrun: lost the agent on n2: " in job.said(), job.said()


def test_a_node_without_power_that_stays_away_is_named(make_nodes):
    """By ssh, after four of its intervals; these are shorter than hvdrun's."""
    interval_s = round(scaled(1))
    nodes = make_nodes(2, ssh=True, bridge=True)
    job = SpreadJob(nodes, (1, 1), environment={"HVD_SSH": f"ssh -o ServerAliveInterval={interval_s}"})
    job.check_usable()
    begin(job)
    at_ns = time.monotonic_ns()
    with nodes.powerless(nodes[1]):
        check_told_of_silence(job, [0], at_ns, Status.ERR_NODE_LOST, ["n2"])
        wait_until(lambda: "hvdrun: lost the agent on n2: " in job.said(), job.said, 10)
        check_prompt("hvdrun named the host", time.monotonic_ns() - at_ns - 4 * interval_s * 10**9, 1_000_000_000)
        job.ranks[0].stop()
        assert job.await_end() != 0, job.said()
    for node in nodes:
        node.check_clean(10)


def test_a_cable_that_is_cut_ends_ranks_on_both_sides_that_say_nothing_to_each_other(make_nodes):
    first, second = make_nodes(2, ssh=True)
    process = first.popen([program("hvdrun"), "-H", "n1:1,n2:1", "--silence-time", "2", "sleep", "1000"], stderr=subprocess.PIPE)

    def ours(node):
        return [line for line in node.processes().values() if not line.startswith("sshd")]

    wait_until(lambda: all("sleep 1000" in ours(node) for node in (first, second)), "the ranks to start", 20)
    second.cut()
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 1 and b"hvdrun: lost the agent on n2: it has said nothing for 2 s (--silence-time)" in err, err
    for node in (first, second):
        wait_until(lambda: not ours(node), lambda: f"nothing to run on {node.name}: {ours(node)}", 10)  # pylint: disable=cell-var-from-loop
    second.heal()


def test_a_bad_network_costs_time_alone(job):
    """1 % is lost both ways, and 20 Mbit/s are left."""
    for node in job.nodes:
        node.lose(1)
        node.limit_rate("20mbit")
    begin(job, elements=20_000)
    check_undisturbed(job, 1)
    # UCX does not say it.
    wait_until(lambda: any(link["retransmits"] > 0 or link["transport"] == "ucx" for link in job.data_links()), "a segment to be sent again")
    end(job)


def test_a_very_bad_network_makes_no_wrong_sum_and_no_hang(job):
    """10 % is lost both ways: it is slow, or so slow that a node is missed."""
    for node in job.nodes:
        node.lose(10)
    for rank in job.ranks:
        rank.post("loop", name="unsteady", count=30, elements=20_000)
    for rank in job.ranks:
        reply = rank.collect(60)
        assert reply["status"] == Status.OK or reply["status"] == Status.ERR_NODE_LOST and re.search(r"\bn[12]\b", reply["text"]), reply
    for node in job.nodes:
        node.heal()


def test_everything_in_flight_ends_when_a_node_is_lost_and_the_ranks_can_open_again(job):
    """An op of a set, a join, a group, a set that is made, a barrier: each waits for a rank that does not come."""
    pair = job.add_set([1, 2])
    member = {"dtype": "float32", "dims": [4]}
    ops = {0: job.ranks[0].submit("join"),
           1: job.ranks[1].submit("allreduce", "in-a-set", dtype="float32", dims=[4], process_set=pair),
           2: job.ranks[2].submit("set_add", ranks=[0, 3]),
           3: job.ranks[3].group("allreduce", "grouped", [member, member])[1]}
    first, second = job.nodes
    at_ns = time.monotonic_ns()
    second.cut()
    for rank, op in ops.items():
        job.ranks[rank].post_wait(op)
    check_told_of_silence(job, job.ranks_of(first), at_ns, Status.ERR_NODE_LOST, [second.name])
    check_told_of_silence(job, job.ranks_of(second), at_ns, Status.ERR_NODE_LOST, [first.name])
    second.heal()
    job.reopen()
    job.check_usable()


# ---- while nodes wait for each other ----

@contextlib.contextmanager
def stopped(pid):
    """It stands still meanwhile; it may be killed for that."""
    os.kill(pid, signal.SIGSTOP)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def fault_of(job, what):
    """The cable, or a process of the first or the second node."""
    if what == "cable":
        job.nodes[1].cut()
        yield
        job.nodes[1].heal()
        return
    number, name = what.split(" ")
    with stopped(job.process_of(job.nodes[int(number)], name)):
        yield


@pytest.mark.soak
@pytest.mark.parametrize("what", ["cable", "0 hvdd-gate", "1 hvdd-gate", "0 hvdd", "1 hvdd"])
@pytest.mark.parametrize("waits, late", [(0, 1), (1, 0)])
def test_nodes_that_wait_meet_when_the_fault_is_over(make_nodes, what, waits, late):
    """The rank of one node waits in a barrier, that of the other one comes when all is well again. By the first they meet."""
    job = SpreadJob(make_nodes(2, ssh=True), (1, 1), late=[late])
    barrier = job.ranks[waits].submit("barrier", "first")
    wait_until(lambda: len([row for row in job.ctl_of(0).json("nodes")["nodes"] if row["jobs"]]) == 1, "the node to wait")
    with fault_of(job, what):
        time.sleep(FAULTS_S)
    job.ranks[late].post("open")
    assert job.ranks[late].collect_outcome().ok, job.said()
    assert job.ranks[late].outcome(job.ranks[late].submit("barrier", "first")).ok and job.ranks[waits].outcome(barrier).ok, job.said()
    job.check_usable()
    check_over(job)


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_that_stands_still_while_its_node_waits_is_named_when_hvdd_has_killed_it(waiting, victim):
    """The last node comes meanwhile, so that the nodes meet."""
    at_ns = time.monotonic_ns()
    os.kill(waiting.process_of(waiting.nodes[victim], "hvdd-engine"), signal.SIGSTOP)
    waiting.ranks[2].post("open")
    assert waiting.ranks[2].collect_outcome().ok, waiting.said()
    waiting.ranks[2].post_wait(waiting.ranks[2].submit("barrier"))
    check_killed_for_silence(waiting, victim, at_ns)


@pytest.mark.soak
def test_a_firewall_between_engines_is_named_with_both_addresses(make_nodes):
    """The daemons have met."""
    nodes = make_nodes(2, ssh=True, families=(4,))
    nodes[1].drop_port(ENGINE_PORT)
    job = SpreadJob(nodes, (1, 1))
    at_ns = time.monotonic_ns()
    for rank in job.ranks:
        rank.post_wait(rank.submit("barrier"), 30)
    here, there = nodes[0].address, f"{nodes[1].address}:{ENGINE_PORT}"
    said = (f"node 1 (n2) at {there} cannot be reached from {here}: ", f"node 0 (n1) at {here} has not connected to {there} in time")
    for rank, text in zip(job.ranks, said):
        reply = rank.collect(60)
        assert reply["status"] == Status.ERR_NODE_LOST and reply["text"].startswith(text), reply
        check_prompt("the rank was told", reply["at_ns"] - at_ns, 11_000_000_000)
    nodes[1].heal()
    check_over(job)


# ---- strangers ----

def listening(node):
    """Where its daemons and engines listen, as others reach it."""
    found = []
    for each in sockets.of_process(node.pid):
        if each.kind in ("tcp", "tcp6") and each.state == "LISTEN" and each.port != 22:
            host = each.local[1:each.local.index("]")]
            found.append(({"::": node.address6, "0.0.0.0": node.address}.get(host, host), each.port))
    return found


def knock(stack, client, place, words):
    """A stranger who says something, and stays."""
    stranger = client.call(socket.create_connection, place, scaled(5))
    stack.enter_context(stranger)
    with contextlib.suppress(OSError):
        stranger.sendall(words)


def test_strangers_at_every_port_disturb_no_running_op(job):
    begin(job)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        for client, server in zip(job.nodes, reversed(job.nodes)):
            places = listening(server)
            assert len(places) == (2 if server is job.nodes[0] else 1), places  # the engine, and the rendezvous
            for place in places:
                for words in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(65536), bytes(4096), b"\xff" * 300) * 8:
                    knock(stack, client, place, words)
        check_undisturbed(job, 1)
    lines = job.said().count(" net connection-refused: ")
    assert 2 <= lines <= 2 * (time.monotonic() - began + 1), job.said()
    lines = job.said().count(" mesh mesh-refused: ")
    assert 1 <= lines <= time.monotonic() - began + 1, job.said()
    end_steady(job)
    job.check_usable()


def test_a_crowd_at_an_engines_port_keeps_no_engine_out(make_nodes):
    """It comes from that node, and is there before the engine is."""
    nodes = make_nodes(2, ssh=True, families=(4,))
    job = SpreadJob(nodes, (1, 1), late=[0])
    first, second = job.ranks
    second.post_wait(second.submit("barrier"))
    with crowd(nodes[0].popen, nodes[0].address, (nodes[1].address, ENGINE_PORT)):
        refused = f"net connection-refused: too many connections of this address have not proved themselves peer={nodes[0].address}:"
        wait_until(lambda: refused in job.said(), "the crowd to be there")
        at_ns = time.monotonic_ns()
        first.post("open")
        assert first.collect_outcome().ok and first.outcome(first.submit("barrier")).ok and second.collect_outcome().ok, job.said()
        check_prompt("the ranks met", time.monotonic_ns() - at_ns, 2_000_000_000)
        begin(job)
        check_undisturbed(job, 0.5)
        end_steady(job)
    check_over(job)


# A hello of net/handshake.c: magic, version, purpose (control), lane, encrypts, 0, epoch, from, to, job, nonce
HELLO = struct.Struct("<8sIBBBBQII32s32s")
WIRE = 4


def mac(said, key):
    return hashlib.blake2b(said, key=key, digest_size=32).digest()


def call_second(job, epoch, key):
    """Speaks to the second engine as if it came from the first one. What came after the hello, until the connection ended."""
    first, second = job.nodes
    name = job.ctl_of(0).json("jobs")["jobs"][0]["job"]
    hello = HELLO.pack(b"hvdd-net", WIRE, 1, 0, 0, 0, epoch, 0, 1, hashlib.blake2b(name.encode(), digest_size=32).digest(), os.urandom(32))
    with first.call(socket.create_connection, (second.address, ENGINE_PORT), scaled(5)) as caller:
        caller.sendall(hello)
        answer = caller.recv(HELLO.size, socket.MSG_WAITALL)
        if answer:
            caller.sendall(mac(hello + answer, mac(b"hvdd engine to engine\0" + struct.pack("<II", 0, 1), key)))
            assert caller.recv(1) == b"", "no stranger gets a proof"
    return answer


def test_a_caller_with_an_old_epoch_or_another_key_is_refused_and_disturbs_no_running_op(make_nodes):
    job = SpreadJob(make_nodes(2, ssh=True), (1, 1), "--log-level", "info")
    job.reopen()
    job.check_usable()
    old, new = map(int, re.findall(r" nodes-met: .* epoch=(\d+) nodes=2 node=1\n", job.said()))
    begin(job)
    assert call_second(job, old, os.urandom(32)) == b""
    check_undisturbed(job, 1.1)  # the log has a line a second
    answer = HELLO.unpack(call_second(job, new, os.urandom(32)))
    assert answer[:2] == (b"hvdd-net", WIRE) and answer[6:9] == (new, 1, 0), answer
    check_undisturbed(job, 0.3)
    refused = re.findall(r" net connection-refused: (.*) peer=10\.77\.1\.1:\d+ more=0\n", job.said())
    assert refused == ["it belongs to another epoch of the job", "its proof is wrong: it has another key"], job.said()
    end_steady(job)
    job.check_usable()
    check_over(job)
