# SPDX-License-Identifier: Apache-2.0
"""hvdds that are in a mesh by mesh-seeds: each has a key of its own, and a list of those that it allows. On the loopback, with engines
that only say what the rendezvous told them."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hvt import SERVICE, Daemon, Rank, Status, as_service, check_prompt, procs, scaled, wait_until
from hvt.build import BUILD, program
from hvt.ctl import hvdctl, new_node_keys
from hvt.ports import free_port
from test_mesh import attached, check_met, epochs

ENGINE = BUILD / "tests" / "hvt_fake_engine"
SEEDS = ("127.0.0.1", "127.0.0.2")
NAMES = (*SEEDS, "n3")


@pytest.fixture(name="node")
def _node(tmp_path: pathlib.Path) -> Callable[..., Daemon]:
    """Makes the hvdd of a node by its name."""
    folders, port = new_node_keys(tmp_path, NAMES), free_port("127.0.0.1", "127.0.0.2")

    def make(name: str, **options: Any) -> Daemon:
        mesh = {"engine": ENGINE, "mesh-seeds": ",".join(f"{seed}:{port}" for seed in SEEDS), "mesh-key": folders[name]}
        if name in SEEDS:
            mesh["mesh-listen"] = f"{name}:{port}"
        daemon = Daemon(options=mesh | {key.replace("_", "-"): value for key, value in options.items()})
        daemon.allow("mesh-not-joined")  # of a seed that is not there yet
        return daemon

    make.folders = folders
    return make


def states(daemon: Daemon) -> dict[str, str]:
    """What this hvdd says of each node."""
    return {row["name"]: row["state"] for row in daemon.ctl.json("nodes")["nodes"]}


def await_mesh(*daemons: Daemon, first: str = SEEDS[0]) -> None:
    """Until each says that all are there, as the first seed does."""
    wanted = {name: "listens" if name == first else "joined" for name in NAMES}
    for daemon in daemons:
        wait_until(lambda daemon=daemon: states(daemon) == wanted, lambda daemon=daemon: f"the mesh: {states(daemon)}", 10, 0.05)


def test_every_node_knows_the_others_and_all_jobs(node):
    with node(SEEDS[0]) as first, node(SEEDS[1]) as second, node("n3") as third:
        nodes = (first, second, third)
        await_mesh(*nodes)
        for daemon in nodes:
            rows = {row["name"]: row for row in daemon.ctl.json("nodes")["nodes"]}
            assert len({row["version"] for row in rows.values()}) == 1 and rows["n3"]["version"]
            assert rows["n3"]["joined_ns"] > 0 and rows[SEEDS[0]]["port"] > 0
        with attached(second, "wide", [0, 1], 4), attached(third, "wide", [3, 2], 4), attached(third, "narrow", [0], 1):
            check_met(second, third, "wide")
            for daemon in nodes:
                jobs = daemon.ctl.json("job", "list", "--mesh")["jobs"]
                assert sorted((row["node"], row["job"], row["attached"], row["size"]) for row in jobs) == \
                    [(SEEDS[1], "wide", 2, 4), ("n3", "narrow", 1, 1), ("n3", "wide", 2, 4)]
                assert all(row["withheld"] and row["uid"] == os.getuid() for row in jobs)
            assert "n3" in first.ctl.run("jobs", "--mesh").stdout


def test_jobs_meet_wherever_a_seed_is_and_running_ones_do_not_notice(node):
    with node(SEEDS[0]) as first, node(SEEDS[1]) as second, node("n3") as third:
        await_mesh(first, second, third)
        for daemon in (second, third):
            daemon.allow("gate-ended")
        with attached(second, "runs", [0], 2), attached(third, "runs", [1], 2):
            check_met(second, third, "runs")
            with attached(third, "waits", [1], 2):
                wait_until(lambda: any("waits" in row["jobs"] for row in first.ctl.json("nodes")["nodes"]), "it to register")
                first.kill()
                wait_until(lambda: not procs.with_token(first.token, str(first.address)), "its gate to end")
                with attached(second, "waits", [0], 2):
                    check_met(second, third, "waits")
            assert states(third)[SEEDS[0]] == "absent"
            os.kill(third.gate(), signal.SIGKILL)
            first.start()
            await_mesh(first, second, third)
            with attached(first, "new", [0], 2), attached(third, "new", [1], 2):
                check_met(first, third, "new")
            assert [line.pairs["job"] for line in third.lines("roster") if line.pairs["status"] == "0"] == ["runs", "waits", "new"]
        assert len(set(epochs(third))) == 3


def test_a_stranger_is_refused_by_both_until_it_is_allowed(node, tmp_path):
    stranger = tmp_path / "stranger"
    hvdctl("key", "new", "--node", "n4", "--dir", stranger)
    for seed in SEEDS:
        key = (node.folders[seed] / "allow" / seed).read_text(encoding="ascii")
        hvdctl("key", "allow", seed, "-", "--dir", stranger, said=key)
    with node(SEEDS[0]) as first, node("n3", mesh_key=stranger) as fourth:
        refused = first.expect_line("mesh-refused", "a node whose key is not in the allow-list was refused")
        shown = hvdctl("key", "show", "--dir", stranger).strip()
        assert f"hvdctl key allow NAME '{shown}'" in refused.text
        fourth.expect_line("mesh-not-joined", "it does not allow this node's key; say there: hvdctl key allow NAME KEY")
        assert "n4" not in states(first) and states(first)["n3"] == "absent"
        assert "does not allow" in fourth.ctl.json("nodes")["note"]
        hvdctl("key", "allow", "n4", shown, "--dir", node.folders[SEEDS[0]])
        wait_until(lambda: states(first).get("n4") == "joined", "the node to come in", 10)
        wait_until(lambda: states(fourth).get("n4") == "joined", "it to know", 5)


def test_what_is_wrong_with_keys_is_a_sentence_that_says_what_to_do(tmp_path):
    def start() -> str:
        done = subprocess.run([program("hvdd"), "--private", f"--runtime-dir={tmp_path}/run", "--mesh-seeds=127.0.0.1:9600",
                               f"--mesh-key={tmp_path}/keys"], capture_output=True, text=True, timeout=20, check=False,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == 1
        return done.stderr

    assert f"the key of this node, {tmp_path}/keys/node.key, cannot be used: No such file or directory; make this node's key " \
           "with `hvdctl key new --node`" in start()
    hvdctl("key", "new", "--node", "n1", "--dir", tmp_path / "keys")
    (tmp_path / "keys" / "node.key").chmod(0o640)
    assert "others may read it" in start()
    (tmp_path / "keys" / "node.key").chmod(0o600)
    (tmp_path / "keys" / "allow").chmod(0o777)
    assert "others may write it" in start()


# ---- whole jobs, with engines and ranks, on nodes of their own ----


def open_wide(daemons: list[Daemon], job: str, user: int | None = None) -> list[Rank]:
    """A rank on each node, by what a launcher says of itself: no address of anything."""
    ranks = [daemon.rank(environment={"HVD_RANK": str(number), "HVD_SIZE": str(len(daemons)), "HVD_LOCAL_RANK": "0", "HVD_LOCAL_SIZE": "1"},
                         user=user)
             for number, daemon in enumerate(daemons)]
    for rank in ranks:
        rank.post("open", job=job)
    for rank in ranks:
        outcome = rank.collect_outcome()
        assert outcome.ok, outcome
    return ranks


def check_sum(ranks: list[Rank], name: str) -> None:
    """An allreduce of all."""
    ops = [rank.submit("allreduce", name, dtype="int32", reduce_op="sum", dims=[1], data=bytes([1, 0, 0, 0])) for rank in ranks]
    for rank, op in zip(ranks, ops):
        outcome = rank.wait(op, want_output=True)
        assert outcome.ok and outcome.data == bytes([len(ranks), 0, 0, 0]), outcome


def check_one_ends_and_the_other_goes_on(daemons: list[Daemon], lost: list[Rank], steady: list[Rank]) -> None:
    """An engine of the first job is killed while the ranks of the second one, which the same hvdds serve, add up."""
    check_sum(lost, "first")
    for daemon in daemons:
        daemon.allow("engine-ended", "job-broken", "node-given-up", "node-lost", "not-told")
    for rank in steady:
        rank.post("loop", name="steady", for_ms=int(scaled(60) * 1000), elements=1024, until_stdin=True)
    op = lost[0].submit("barrier")
    at_ns = time.monotonic_ns()
    os.kill(daemons[1].engine_of("next"), signal.SIGKILL)
    outcome = lost[0].outcome(op)
    check_prompt("the other node's rank was told", outcome.at_ns - at_ns, 1_000_000_000)
    assert outcome.status == Status.ERR_NODE_LOST and "n2" in outcome.text, outcome
    for rank in steady:
        assert not rank.has_reply(), rank.collect()
        rank.post("stop")
    for rank in steady:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > 0, reply
        assert rank.collect()["status"] == Status.OK
    check_sum(steady, "after")


def test_a_job_needs_no_address_and_outlives_every_hvdd_and_gate_one_after_the_other(make_nodes):
    nodes = make_nodes(2)
    folders = new_node_keys(nodes.shared, ("n1", "n2"))
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(node=node, options={"mesh-seeds": "n1:9600,n2:9600", "mesh-key": folders[f"n{number}"]}))
                   for number, node in enumerate(nodes, 1)]
        for daemon in daemons:
            daemon.allow("mesh-not-joined", "gate-ended")
        ranks = open_wide(daemons, "steady")
        check_sum(ranks, "before")
        for number, daemon in enumerate(daemons):
            daemon.kill()
            check_sum(ranks, f"without {number}")
            daemon.start()
            os.kill(wait_until(daemon.gate, "a gate"), signal.SIGKILL)
            wait_until(daemon.jobs, "the engine to say hello to the new hvdd")
            check_sum(ranks, f"with {number}")
        wait_until(lambda: sorted(states(daemons[1]).values()) == ["joined", "listens"], "the mesh", 10)
        assert sorted((row["node"], row["job"]) for row in daemons[1].ctl.json("jobs", "--mesh")["jobs"]) == \
            [("n1", "steady"), ("n2", "steady")]
        check_one_ends_and_the_other_goes_on(daemons, open_wide(daemons, "next"), ranks)


@pytest.fixture(name="open_path")
def _open_path() -> Iterator[pathlib.Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="hvt-keys-") as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


def test_a_uid_means_the_same_on_all_nodes_of_one_allow_list(open_path):
    """Jobs of one id and two users, on services: each user's ranks meet, and only they."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    folders, port = new_node_keys(open_path, SEEDS), free_port("127.0.0.1", "127.0.0.2")
    with contextlib.ExitStack() as stack:
        daemons = []
        for name, folder in folders.items():
            shutil.chown(folder / "node.key", SERVICE, SERVICE)
            options = {"private": "no", "admin-mode": "0666", "mesh-seeds": ",".join(f"{seed}:{port}" for seed in SEEDS),
                       "mesh-listen": f"{name}:{port}", "mesh-key": folder}
            daemons.append(stack.enter_context(Daemon(options=options, user=as_service(), folder_mode=0o755)))
            daemons[-1].allow("mesh-not-joined")
        theirs, others = open_wide(daemons, "same", user=2001), open_wide(daemons, "same", user=2002)
        for ranks in (theirs, others):
            check_sum(ranks, "sum")
        jobs = daemons[1].ctl.json("jobs", "--mesh", user=2001)["jobs"]
        assert sorted((row["node"], row["uid"]) for row in jobs) == [(seed, uid) for seed in SEEDS for uid in (2001, 2002)]
