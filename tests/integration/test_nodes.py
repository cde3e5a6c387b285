# SPDX-License-Identifier: Apache-2.0
"""hvdrun, hvdd and ranks on several nodes: every op is right wherever its ranks are, and nothing is left behind."""
import contextlib
import json
import math
import os
import pathlib
import re
import socket
import time

import pytest

from hvt import Status, arith, new_keys, program, scaled, sockets, wait_until
from hvt.ctl import Ctl
from hvt.namespaces import mount
from hvt.nodes import SECOND_NETWORK, complaints
from hvt.spread import SpreadJob

FULL = "the file with stdout of rank {} is not complete: No space left on device"
SO_RCVBUFFORCE = 33  # of the kernel; Python has no name for it
INT32 = arith.DTYPES["int32"]
OPS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
# Each op in a session of its own: the nodes meet again and again.
PERF = 'for op in $OPS; do "$PERF" -o $op -c -b 4 -e 1M -f 512 -w 1 -i 3 --json || exit 1; done'


def perf_command(hosts, ops, *arguments):
    return [program("hvdrun"), "-H", hosts, "--no-prefix", "-x", f"OPS={' '.join(ops)}", "-x", f"PERF={program('hvd-perf')}", *arguments,
            "sh", "-c", PERF]


def bus_factor(op, ranks):
    """Of what a rank's algorithm moves, how much goes over the bus, as nccl-tests count."""
    return {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1, "barrier": 0}.get(op, (ranks - 1) / ranks)


def check_perf(code, out, err, ops, nodes=2):
    assert code == 0 and not complaints(err), err
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert {row["op"] for row in rows if "op" in row} == set(ops), out
    assert len(rows) >= 3 * len(ops) - 2 and not any(row.get("errors") for row in rows), out
    for row in rows:
        assert row["nodes"] == nodes, row
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * bus_factor(row["op"], row["np"]), abs=2e-4), row
    assert all(row["busbw_GBps"] > 0 for row in rows if row["bytes"] >= 1 << 20), out


def check_nothing_left(nodes):
    for node in nodes:
        node.check_clean()


@pytest.mark.parametrize("hosts", ["n1:2,n2:2", "n1:1,n2:3"])
def test_every_op_is_right_between_two_nodes(make_nodes, hosts):
    nodes = make_nodes(2, ssh=True)
    done = nodes[0].run(perf_command(hosts, OPS), timeout=60)
    check_perf(done.returncode, done.stdout, done.stderr, OPS)
    check_nothing_left(nodes)


def test_every_op_is_right_on_three_nodes_that_have_only_ipv6_and_one_starts_the_agent_of_another(make_nodes):
    nodes = make_nodes(3, ssh=True, families=(6,), ssh_port=2222)
    hosts = ",".join(f"[{node.address6}]:{number}" for number, node in enumerate(nodes, 1))
    done = nodes[0].run(perf_command(hosts, OPS, "-p", "2222", "-i", str(nodes.key), "--fan-out", "1"), timeout=60)
    check_perf(done.returncode, done.stdout, done.stderr, OPS, 3)
    check_nothing_left(nodes)


def test_ranks_that_open_and_close_without_an_op_stay_in_step(make_nodes):
    """Each at its own pace, as after init(), shutdown(), init(): whoever is in a generation has all others in it."""
    nodes = make_nodes(3, ssh=True)
    job = SpreadJob(nodes, (1, 2, 1))
    for rank in job.ranks:
        for _ in range(8):
            rank.post("close")
            rank.post("open")
    for rank in job.ranks:
        outcomes = [rank.collect_outcome() for _ in range(16)]
        assert all(outcome.ok for outcome in outcomes), (rank.number, outcomes)
    job.check_usable()
    job.close()
    assert job.await_end() == 0, job.said()
    assert "warning" not in complaints(job.said()), job.said()
    check_nothing_left(nodes)


def cores_of(node):
    """What each program there may use: its name -> sets of cores."""
    found = {}
    for pid, line in node.processes().items():
        with contextlib.suppress(ProcessLookupError):
            found.setdefault(pathlib.Path(line.split(" ")[0]).name, set()).add(frozenset(os.sched_getaffinity(pid)))
    return found


@pytest.mark.parametrize("bind_to, slots", [("", (1, 1)), ("host", (1, 2)), ("none", (1, 1))])
def test_hosts_that_are_one_machine_divide_its_cores(make_nodes, bind_to, slots):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, slots, "--verbose", bind_to=bind_to)
    cores = sorted(os.sched_getaffinity(0))
    edge = len(cores) * slots[0] / sum(slots)
    parts = [cores[:math.ceil(edge)], cores[math.floor(edge):]] if bind_to != "none" else [cores, cores]
    for node, part in zip(nodes, parts):
        found = cores_of(node)
        for name in ("hvdd", "hvdd-engine", "hvdd-gate", "hvt-rank"):
            assert found[name] == {frozenset(part)}, (node.name, name, found)
    assert ("keeps to the cores " in job.said()) == (bind_to != "none"), job.said()
    job.check_usable()
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def test_two_jobs_at_once_on_the_same_nodes(make_nodes):
    nodes = make_nodes(2, ssh=True)
    ops = ("allreduce", "alltoall")
    started = [node.popen(perf_command(hosts, ops), stdout=-1, stderr=-1, text=True)
               for node, hosts in ((nodes[0], "n1:2,n2:1"), (nodes[1], "n2:1,n1:2"))]
    for process in started:
        out, err = process.communicate(timeout=60)
        check_perf(process.returncode, out, err, ops)
    check_nothing_left(nodes)


def test_all_nodes_may_have_one_host_name_and_a_lost_rank_is_named_with_its_nodes_address(make_nodes):
    nodes = make_nodes(2, ssh=True, families=(4,), host_names=["twin", "twin"])
    job = SpreadJob(nodes, (2, 2))
    inputs = [arith.pack(INT32, [rank + 1, 5]) for rank in range(4)]
    for outcome in job.run("allreduce", dtype="int32", dims=[2], data=inputs, reduce_op="sum"):
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
    assert [row["name"] for row in job.ctl_of(0).json("nodes")["job_nodes"]] == [f"twin[{node.address}]" for node in nodes]
    waiting = {rank: job.ranks[rank].submit("barrier", "last") for rank in (0, 1, 2)}
    job.ranks[3].kill()
    for rank, op in waiting.items():
        outcome = job.ranks[rank].outcome(op)
        assert outcome.status == Status.ERR_RANK_LOST, outcome
        assert outcome.text.startswith(f"rank 3 on twin[{nodes[1].address}] (pid ") and "SIGKILL" in outcome.text, outcome.text
    job.close()
    check_nothing_left(nodes)


def test_a_full_disk_behind_the_files_of_the_output_is_told_when_the_job_has_ended(make_nodes):
    nodes = make_nodes(2, ssh=True)
    logs = nodes.shared / "logs"
    logs.mkdir()
    nodes[0].call(mount, "tmpfs", str(logs), "tmpfs", 0, "size=64k")
    script = "yes | head -n 100000; echo end >&2"
    done = nodes[0].run([program("hvdrun"), "-H", "n1:1,n2:1", "--output-filename", logs, "sh", "-c", script])
    assert done.returncode == 1 and all(FULL.format(rank) in done.stderr for rank in range(2)), done.stderr
    for rank in range(2):
        assert done.stdout.count(f"[{rank}]<stdout>:y\n") == 100000 and f"[{rank}]<stderr>:end\n" in done.stderr, done.stderr
    check_nothing_left(nodes)


def test_hvdrun_takes_the_daemons_of_a_mesh_that_is_there(make_nodes):
    """Made by hand as in docs/several-machines.md."""
    nodes = make_nodes(2, ssh=True)
    keys, place = new_keys(nodes.shared / "mesh"), f"{nodes[0].address}:9600"
    daemons = []
    for node, way in zip(nodes, ("--mesh-listen", "--mesh-join")):
        command = [program("hvdd"), "--private=yes", "--runtime-dir", "/tmp/hvdd", way, place, "--mesh-key", keys, "--log-level=info"]
        with (nodes.shared / f"log.{node.name}").open("wb") as log:
            daemons.append(node.popen(command, stderr=log))
    ctl = Ctl(pathlib.Path("/tmp/hvdd"), nodes[0].environment(), nodes[0])
    wait_until(lambda: len(re.findall(r"^n[12] ", ctl.run("nodes").stdout, re.MULTILINE)) == 2, lambda: f"nodes: {ctl.run('nodes')}")
    ops = ("allreduce", "alltoall")
    done = nodes[0].run(perf_command("n1:2,n2:2", ops, "--address", "/tmp/hvdd"), timeout=60)
    check_perf(done.returncode, done.stdout, done.stderr, ops)
    assert " job-met: " in (nodes.shared / "log.n1").read_text(encoding="utf-8")
    for daemon in daemons:
        assert daemon.poll() is None
        daemon.terminate()
        assert daemon.wait(scaled(10)) == 0
    check_nothing_left(nodes)


def test_lanes_and_ports_that_were_asked_for_carry_the_data(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 1), environment={"HVD_NET_LANES": "2", "HVD_PORT_RANGE": "9700-9702"})
    data = [bytes([rank + 1, 0, 0, 0]) * (1 << 18) for rank in range(2)]
    for outcome in job.run("allreduce", dtype="int32", dims=[1 << 18], data=data, reduce_op="sum"):
        assert outcome.ok and outcome.data == b"\3\0\0\0" * (1 << 18), outcome.status
    seen = nodes[0].run(["ss", "-tinOH", "state", "established"], check=True).stdout
    lanes = [sent for port, sent in re.findall(r":(9700|9701|9702)\b.* bytes_sent:(\d+)", seen) if int(sent) > 100_000]
    assert len(lanes) == 2 and sum(int(sent) for sent in lanes) < 1_200_000, seen
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


@pytest.mark.parametrize("wanted, by", [("eth1", "--network-interfaces"), *(pytest.param(*each, marks=pytest.mark.soak) for each in (
    (f"{SECOND_NETWORK}.0/24", "--network-interfaces"), ("^eth0", "--network-interfaces"), ("eth7,eth1", "HVD_INTERFACE"),
    (f"{SECOND_NETWORK}.0/24", "HVD_INTERFACE"), ("eth1", "HOROVOD_GLOO_IFACE")))])
def test_daemons_and_engines_meet_over_the_network_that_was_chosen(make_nodes, wanted, by):
    """By an option or a variable. The hosts' names, and so ssh, lead over another one."""
    nodes = make_nodes(2, ssh=True)
    nodes.add_network()
    option, environment = ([by, wanted], {}) if by.startswith("-") else ([], {by: wanted})
    job = SpreadJob(nodes, (1, 1), "--log-level", "info", *option, environment=environment)
    data = [bytes([rank + 1, 0, 0, 0]) * (1 << 18) for rank in range(2)]
    for outcome in job.run("allreduce", dtype="int32", dims=[1 << 18], data=data, reduce_op="sum"):
        assert outcome.ok and outcome.data == b"\3\0\0\0" * (1 << 18), outcome.status
    said, here, there = job.said(), *(node.second_address for node in nodes)
    for address in (here, there):
        assert f"mesh-interface: this node announces the address of an interface interface=eth1 address={address} wanted={wanted}\n" in said
    reply = job.ctl_of(0).json("nodes")
    assert [row["address"] for row in reply["nodes"]] == [row["address"] for row in reply["job_nodes"]] == [here, there], reply
    ours = [each for each in sockets.of_process(nodes[0].pid) if each.state == "ESTABLISHED" and not each.remote.endswith("]:22")]
    assert len(ours) >= 3, ours  # the daemons, and two of the engines
    assert all(each.local.startswith(f"[{here}]:") and each.remote.startswith(f"[{there}]:") for each in ours), ours
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def listener(node):
    """A socket that hears what goes over the node's cable."""
    heard = node.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    heard.bind(("eth0", 3))
    heard.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    heard.setblocking(False)
    return heard


def packets(heard):
    """Those that have come."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield heard.recv(1 << 17)


def test_data_cannot_be_read_on_the_way_where_it_is_encrypted(make_nodes):
    nodes = make_nodes(2, ssh=True)
    secret = b"an unusual word " * 4096
    for encrypt in ("0", "1"):
        job = SpreadJob(nodes, (2, 1), environment={"HVD_ENCRYPT": encrypt})
        job.check_usable()
        with listener(nodes[0]) as heard:
            for outcome in job.run("broadcast", dtype="uint8", dims=[len(secret)], data=[secret] * 3, root=0):
                assert outcome.ok and outcome.data == secret, outcome.status
            seen = list(packets(heard))
        assert sum(map(len, seen)) > len(secret)
        assert any(secret[:64] in packet for packet in seen) == (encrypt == "0")
        job.close()
        assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


# ---- what ranks say to each other ----

def check_sets(job):
    """A process set on one node, and one over both: an op in it is the sum of its ranks only."""
    for members in ([2, 3], [1, 2]):
        number = job.add_set(members)
        inputs = [arith.pack(INT32, [rank + 1, 5]) for rank in members]
        for outcome in job.run("allreduce", dtype="int32", dims=[2], data=inputs, reduce_op="sum", ranks=members, process_set=number):
            assert outcome.ok, outcome
            assert outcome.data == arith.allreduce(INT32, "sum", inputs)
        job.remove_set(number)


def check_mismatch(job, odd):
    shapes = [[10, 5] if rank == odd else [10, 4] for rank in range(job.size)]
    outcomes = job.run("allreduce", name=f"w{odd}", dtype="float32", dims=shapes, reduce_op="sum")
    assert {outcome.status for outcome in outcomes} == {Status.ERR_MISMATCH}, outcomes
    assert len({outcome.text for outcome in outcomes}) == 1, outcomes
    others = ",".join(str(rank) for rank in range(job.size) if rank != odd)
    for word in (f"w{odd}", f"rank {odd} ", others, "[10, 4]", "[10, 5]"):
        assert word in outcomes[0].text, outcomes[0].text


def check_join(job):
    """Ranks of both nodes have joined: the others add up without them, and all learn who was last."""
    ended = {rank: job.ranks[rank].submit("join") for rank in (0, 3)}
    data = arith.pack(INT32, [7, -2])
    for outcome in job.run("allreduce", dtype="int32", dims=[2], data=[data, data], reduce_op="sum", ranks=[1, 2]):
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", [data, data]), outcome
    ended |= {rank: job.ranks[rank].submit("join") for rank in (1, 2)}
    outcomes = [job.ranks[rank].outcome(op) for rank, op in ended.items()]
    assert all(outcome.ok for outcome in outcomes), outcomes
    assert len({outcome.joined for outcome in outcomes}) == 1 and outcomes[0].joined in (1, 2), outcomes


def test_sets_mismatches_and_join_over_two_nodes(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (2, 2))
    job.check_usable()
    check_sets(job)
    check_mismatch(job, 0)
    check_mismatch(job, 3)
    check_join(job)
    job.check_usable()
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


# ---- steps that repeat ----

def counted(job, what):
    """Of each rank: its ops that have started without a message between engines ("replayed"), or without its engine ("express")."""
    found = {}
    for node in job.nodes:
        text = pathlib.Path(f"/proc/{job.pid_of(job.ranks_of(node)[0])}/environ").read_text(encoding="utf-8")
        given = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
        rows = Ctl(pathlib.Path(given["HVD_ADDRESS"]), node.environment(), node).json("ranks", given["HVD_JOB_ID"])["ranks"]
        found |= {row["rank"]: row[what] for row in rows}
    return found


def run_group(job, number):
    """Sums of three sizes, of which one is empty, that start together."""
    sizes = (3, 0, 5000)
    ops = [rank.group("allreduce", "all", [{"dtype": "int32", "dims": [size], "data": arith.pack(INT32, [at + number] * size)}
                                           for size in sizes], reduce_op="sum") for at, rank in enumerate(job.ranks)]
    for rank, mine in zip(job.ranks, ops):
        rank.post("wait_all", ops=mine, timeout_ms=20000)
    for rank in job.ranks:
        rank.collect_outcome()
    for rank, mine in zip(job.ranks, ops):
        for size, outcome in zip(sizes, map(rank.outcome, mine)):
            expected = arith.allreduce(INT32, "sum", [arith.pack(INT32, [at + number] * size) for at in range(job.size)])
            assert outcome.ok and outcome.data == expected, outcome.text


def run_step(job, number):
    """Two sums, small and large, one without a name, a group of them, and a broadcast."""
    ops = [rank.submit("allreduce", None, dtype="int32", dims=[3], data=arith.pack(INT32, [number, at, 1]), reduce_op="sum")
           for at, rank in enumerate(job.ranks)]
    for rank, op in zip(job.ranks, ops):
        outcome = rank.outcome(op)
        assert outcome.ok and outcome.data == arith.pack(INT32, [job.size * number, sum(range(job.size)), job.size]), outcome.text
    for name, elements in (("small", 2), ("large", 20000)):
        inputs = [arith.pack(INT32, [rank + number] * elements) for rank in range(job.size)]
        for outcome in job.run("allreduce", name=name, dtype="int32", dims=[elements], data=inputs, reduce_op="sum"):
            assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), (name, outcome.text)
    run_group(job, number)
    inputs = [arith.pack(INT32, [number, rank]) for rank in range(job.size)]
    for outcome in job.run("broadcast", name="said", dtype="int32", dims=[2], data=inputs, root=1):
        assert outcome.ok and outcome.data == inputs[1], outcome.text


def run_gather(job, number, more=0):
    """Rank r brings r + 1 rows, the last one so many `more`; the library has the memory for the result."""
    counts = [rank + 1 for rank in range(job.size)]
    counts[-1] += more
    inputs = [arith.pack(INT32, [number + rank] * count) for rank, count in enumerate(counts)]
    for outcome in job.run("allgather", name="gathered", dtype="int32", dims=[[count] for count in counts], data=inputs):
        assert outcome.ok and outcome.data == b"".join(inputs), outcome.text


def run_gathers(job, number):
    """Two that start together, and get their memory before that."""
    ops = [rank.group("allgather", "both", [{"dtype": "int32", "dims": [rows], "data": arith.pack(INT32, [at + number] * rows)}
                                            for rows in (at, 2)]) for at, rank in enumerate(job.ranks)]
    for rank, mine in zip(job.ranks, ops):
        rank.post("wait_all", ops=mine, timeout_ms=20000)
    for rank in job.ranks:
        rank.collect_outcome()
    for rank, mine in zip(job.ranks, ops):
        for member, outcome in enumerate(map(rank.outcome, mine)):
            expected = [at + number for at in range(job.size) for _ in range((at, 2)[member])]
            assert outcome.ok and outcome.data == arith.pack(INT32, expected), outcome.text


def run_rows(job, number):
    """What has its size by the others: every kind of op whose result has another size than the input."""
    run_gather(job, number)
    run_gathers(job, number)
    values = range(2 * job.size + 1)
    inputs = [arith.pack(INT32, [number * at + rank for at in values]) for rank in range(job.size)]
    parts = [outcome.data for outcome in job.run("reducescatter", name="scattered", dtype="int32", dims=[len(values)], data=inputs,
                                                 reduce_op="sum")]
    assert b"".join(parts) == arith.allreduce(INT32, "sum", inputs) and len(parts[0]) == 12, parts
    inputs = [arith.pack(INT32, [number + 10 * rank + to for to in range(job.size)]) for rank in range(job.size)]
    for to, outcome in enumerate(job.run("alltoall", name="exchanged", dtype="int32", dims=[job.size], data=inputs)):
        assert outcome.ok and outcome.data == b"".join(data[4 * to:4 * to + 4] for data in inputs), outcome.text


def run_until_replayed(job, run=run_step, steps=5):
    """A busy machine may stop a rank for so long that the others negotiate."""
    before = counted(job, "replayed")
    for turn in range(12):
        for number in range(steps):
            run(job, 5 * turn + number)
        after = counted(job, "replayed")
        if all(after[rank] >= before[rank] + 12 for rank in after):
            return
    raise AssertionError(f"{before} {after}")


def messages_sent(job):
    """Of all nodes to all others, data apart. To ask costs some, always as many."""
    rows = job.ctl_of(0).json("nodes")["job_nodes"]
    return sum(link["messages_sent"] for row in rows for link in row["links"] if link["kind"] == "control")


def cost_of(job, play):
    """The messages that it takes."""
    first = messages_sent(job)
    before = messages_sent(job)
    play()
    return messages_sent(job) - before - (before - first)


def loop(job, count):
    for rank in job.ranks:
        rank.post("loop", name="again", count=count, elements=5000)
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] == count, reply


def test_ops_of_a_set_on_one_node_are_done_by_its_ranks_themselves(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 2))
    members = [1, 2]
    number = job.add_set(members)
    inputs = [arith.pack(INT32, [rank, 5]) for rank in members]

    def play():
        for _ in range(20):
            for outcome in job.run("allreduce", name="near", dtype="int32", dims=[2], data=inputs, reduce_op="sum", ranks=members,
                                   process_set=number):
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome

    before = counted(job, "express")
    play()
    assert any(cost_of(job, play) == 0 for _ in range(3))
    after = counted(job, "express")
    assert after[0] == before[0] and all(after[rank] >= before[rank] + 20 for rank in members), (before, after)
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def test_steps_that_are_replayed_cost_no_message_between_engines(make_nodes):
    """A busy machine may stop a rank for so long that the others negotiate: then it is tried again."""
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (2, 1))
    run_until_replayed(job)
    assert any(cost_of(job, lambda: [run_step(job, number) for number in range(20)]) == 0 for _ in range(3))
    loop(job, 50)
    assert any(cost_of(job, lambda: loop(job, 1000)) == 0 for _ in range(3))
    assert cost_of(job, lambda: run_gather(job, 1)) > 0
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def test_steps_that_repeat_are_replayed_until_one_differs(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (2, 1))
    run_until_replayed(job)
    shapes = [[20000], [20000], [7]]
    outcomes = job.run("allreduce", name="large", dtype="int32", dims=shapes, reduce_op="sum")
    assert {(outcome.status, outcome.text) for outcome in outcomes} == {
        (Status.ERR_MISMATCH, "allreduce 'large': ranks disagree on shape: ranks 0,1 said [20000]; rank 2 said [7]")}, outcomes
    run_until_replayed(job)
    run_until_replayed(job, run_rows, 8)
    run_gather(job, 1, more=1000)
    run_until_replayed(job, run_rows, 8)
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def run_barrier(job, _number=0):
    for outcome in job.run("barrier", name="all here"):
        assert outcome.ok, outcome.text


def test_a_rank_that_is_late_for_a_repeated_op_is_waited_for(make_nodes):
    """It is late for longer than engines have to connect. The first three barriers need no data connection. Node 1 starts the
    fourth without a message, and waits for a data connection that node 0 makes."""
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (1, 1))
    for _ in range(3):
        run_barrier(job)
    early = job.ranks[1].submit("barrier", "all here")
    time.sleep(12)
    late = job.ranks[0].submit("barrier", "all here")
    for rank, op in ((job.ranks[1], early), (job.ranks[0], late)):
        outcome = rank.outcome(op)
        assert outcome.ok, outcome.text
    run_until_replayed(job, run_barrier)
    job.close()
    assert job.await_end() == 0, job.said()
    check_nothing_left(nodes)


def test_this_machine_may_be_named_in_full(make_nodes):
    """As `hostname -f` says it, in any case. There is no sshd; another machine may have the same first name."""
    node = make_nodes(2)[0]
    node.hosts.write_text(f"127.0.1.1 {node.name}.cluster.example {node.name}\n{node.hosts.read_text()}")
    command = [program("hvdrun"), "--no-prefix", "-H", f"{node.name.upper()}.cluster.Example:2", "sh", "-c", "echo $HVD_LOCAL_SIZE"]
    done = node.run(command, env=node.environment(), timeout=scaled(30))
    assert (done.returncode, done.stdout.split()) == (0, ["2", "2"]), done.stderr
    command[3] = f"{node.name}.other.example:2"
    done = node.run(command, env=node.environment(), timeout=scaled(30))
    assert done.returncode != 0 and f"{node.name}.other.example" in done.stderr, done.stdout
