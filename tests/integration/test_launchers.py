# SPDX-License-Identifier: Apache-2.0
"""Who am I: arguments, then the innermost launcher's environment, and `hvdctl ranks` says where it came from."""
import os
import signal
import time

import pytest

from hvt import Daemon, Rank, Status, check_prompt, new_keys, procs, wait_until, wire
from hvt.environment import clean_environment

LAUNCHERS = {
    "hvdrun": {"HVD_RANK": "1", "HVD_SIZE": "4", "HVD_LOCAL_RANK": "1", "HVD_LOCAL_SIZE": "4", "HVD_CROSS_RANK": "0",
               "HVD_CROSS_SIZE": "1"},
    "horovodrun": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
                   "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "here"},
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "0",
                 "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500",
                 "TORCHELASTIC_RUN_ID": "run7"},
    "openmpi": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    "pmi": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    "slurm": {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_NNODES": "1",
              "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
}
# What the same launchers say when two of the four ranks are on another node.
ON_TWO_NODES = {
    "hvdrun": {"HVD_LOCAL_SIZE": "2", "HVD_CROSS_SIZE": "2"},
    "horovodrun": {"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_SIZE": "2"},
    "torchrun": {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"},
    "openmpi": {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "pmi": {"MPI_LOCALNRANKS": "2"},
    "slurm": {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "2"},
}
_LOCAL = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE", "LOCALNRANKS", "NODES", "CROSS_SIZE", "GROUP_WORLD_SIZE")


@pytest.fixture
def daemon():
    """Does not wait long for the other ranks, which never come here."""
    with Daemon(options={"engine-linger": "20ms"}) as running:
        yield running


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_identity_comes_from_the_launchers_environment(daemon, launcher):
    rank = daemon.rank(environment=LAUNCHERS[launcher])
    identity = rank.open()
    assert (identity["rank"], identity["size"]) == (1, 4)
    assert (identity["local_rank"], identity["local_size"]) == (1, 4)
    assert (identity["cross_rank"], identity["cross_size"]) == (0, 1)
    rows = {row["rank"]: row for row in daemon.ctl.json("ranks", identity["job"])["ranks"]}
    assert rows[1]["origin"] == launcher and rows[1]["pid"] == rank.pid
    assert "7" in identity["job"] if launcher == "slurm" else identity["job"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_on_two_nodes_is_refused_by_a_daemon_without_a_mesh(daemon, launcher):
    rank = daemon.rank(environment=LAUNCHERS[launcher] | ON_TWO_NODES[launcher])
    began_ns = time.monotonic_ns()
    outcome = rank.try_open("wide")
    check_prompt("the rank was refused", time.monotonic_ns() - began_ns, 100_000_000)
    assert outcome.status == Status.ERR_UNSUPPORTED, outcome
    assert f"rank 1 of job 'wide' is one of 4 ranks on 2 nodes (from {launcher}: local_size 2, " in outcome.text
    assert "start the job with hvdrun -H, or set HVD_RENDEZVOUS to the name of one of its machines and HVD_KEY_FILE to keys that " \
           "`hvdctl key new` has made, or start hvdd with --mesh-seeds, --mesh-listen or --mesh-join" in outcome.text
    assert not daemon.jobs() and len(daemon.lines("attach-refused")) == 1


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_on_two_nodes_that_has_a_place_to_meet_and_no_keys_is_told_how_to_make_them(launcher, tmp_path):
    rank = Rank(clean_environment() | LAUNCHERS[launcher] | ON_TWO_NODES[launcher]
                | {"XDG_RUNTIME_DIR": str(tmp_path), "HVD_RENDEZVOUS": "n1"})
    try:
        outcome = rank.try_open("wide")
    finally:
        rank.stop()
    assert outcome.status == Status.ERR_INVALID, outcome
    assert "HVD_RENDEZVOUS is 'n1' but HVD_KEY_FILE is not set; make a pair with `hvdctl key new PREFIX`" in outcome.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_says_nothing_about_nodes_has_one(daemon, launcher):
    silent = {name: value for name, value in LAUNCHERS[launcher].items() if not name.endswith(_LOCAL)}
    identity = daemon.rank(environment=silent).open("here")
    assert (identity["local_rank"], identity["local_size"], identity["cross_size"]) == (1, 4, 1)


def test_a_client_that_claims_a_job_on_two_nodes_is_refused_too(daemon):
    claim = wire.message((1, wire.PROTOCOL_VERSION), (2, wire.ABI_VERSION), (3, "wide"), (5, 0), (6, 4), (7, 0), (8, 2),
                         (9, 0), (10, 2))
    began_ns = time.monotonic_ns()
    with wire.Raw(daemon.attach_path) as raw:
        raw.send(wire.field(wire.ATTACH_REQUEST, claim))
        reply = raw.attach_reply()
    check_prompt("the claim was refused", time.monotonic_ns() - began_ns, 100_000_000)
    assert reply.status == Status.ERR_UNSUPPORTED
    assert "rank 0 of job 'wide' is one of 4 ranks on 2 nodes (local_size 2, cross_size 2)" in reply.text
    assert not daemon.jobs()


def test_the_innermost_launcher_wins_and_arguments_win_over_all(daemon):
    environment = {}
    for launcher in reversed(LAUNCHERS):
        environment |= LAUNCHERS[launcher]
    names = list(LAUNCHERS)
    for place, launcher in enumerate(names):
        environment |= LAUNCHERS[launcher]
        for outer in names[place + 1:]:
            environment |= {name: "0" if name.endswith(("RANK", "PROCID")) else value
                            for name, value in LAUNCHERS[outer].items()}
        mine = daemon.rank(environment=environment)
        identity = mine.open(f"order{place}")
        assert identity["rank"] == 1
        origin = [row["origin"] for row in daemon.ctl.json("ranks", f"order{place}")["ranks"] if row["pid"] == mine.pid]
        assert origin == [launcher]
        for name in LAUNCHERS[launcher]:
            environment.pop(name, None)
    asked = daemon.rank(environment=LAUNCHERS["torchrun"]).open("asked", 2, 3)
    assert (asked["rank"], asked["size"]) == (2, 3)


def test_without_any_launcher_it_is_rank_zero_of_one(daemon):
    identity = daemon.rank().open()
    assert (identity["rank"], identity["size"], identity["local_size"], identity["cross_size"]) == (0, 1, 1, 1)


def test_the_job_id_comes_from_the_environment_and_two_runs_do_not_meet(daemon):
    assert daemon.rank(environment={"HVD_JOB_ID": "mine"}).open()["job"] == "mine"
    one = daemon.rank(environment=LAUNCHERS["slurm"] | {"SLURM_JOB_ID": "8"}).open()["job"]
    two = daemon.rank(environment=LAUNCHERS["slurm"] | {"SLURM_JOB_ID": "9"}).open()["job"]
    assert one != two


@pytest.mark.parametrize("environment", [
    {"HVD_RANK": "1"}, {"RANK": "one", "WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "2"},
    {"HVD_RANK": "", "HVD_SIZE": "2"}, {"PMI_RANK": "-1", "PMI_SIZE": "2"}], ids=str)
def test_half_an_identity_is_an_error_and_never_rank_zero_of_one(daemon, environment):
    outcome = daemon.rank(environment=environment).try_open()
    assert outcome.status in (Status.ERR_INVALID, Status.ERR_BAD_RANK), outcome
    assert any(name in outcome.text or name.rsplit("_", 1)[-1].lower() in outcome.text.lower() for name in environment)


@pytest.mark.parametrize("environment", [
    {"HVD_JOB_KEY": "k1"}, {"HVD_JOB_ID": "keyed", "HVD_JOB_KEY": "k1"}], ids=str)
def test_the_job_key_comes_from_the_environment_and_is_never_shown(daemon, environment):
    daemon.allow("attach-refused")
    job = daemon.rank(environment=environment).open(rank=0, size=2)["job"]
    assert daemon.rank(environment=environment | {"HVD_JOB_ID": job, "HVD_JOB_KEY": "k2"}).try_open(
        rank=1, size=2).status == Status.ERR_REFUSED
    assert daemon.rank(environment=environment | {"HVD_JOB_ID": job}).try_open(rank=1, size=2).ok
    assert "k1" not in daemon.log_text()


# ---- a place to meet that is none ----


@pytest.fixture(name="elsewhere")
def _elsewhere(tmp_path):
    """Starts rank 1 of a job on two nodes, for which there is a private hvdd that meets others at this place."""
    started = []

    def start(place, keys, **more):
        rank = Rank(clean_environment() | LAUNCHERS["hvdrun"] | ON_TWO_NODES["hvdrun"] | more
                    | {"HVD_SIZE": "2", "HVD_LOCAL_SIZE": "1", "HVD_LOCAL_RANK": "0", "HVD_CROSS_RANK": "1",
                       "XDG_RUNTIME_DIR": str(tmp_path), "HVD_RENDEZVOUS": place, "HVD_KEY_FILE": str(keys)})
        started.append(rank)
        return rank

    yield start
    for rank in started:
        rank.stop()
    for pid in procs.pids():
        if f"--runtime-dir {tmp_path}/" in procs.cmdline(pid):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not list(tmp_path.glob("hvdd-*/*")), "the private hvdd to go")


def test_a_rendezvous_that_cannot_be_reached_is_named_with_its_variable(elsewhere, tmp_path):
    # No machine has an address of 192.0.2.0/24, which is for documentation.
    rank = elsewhere("192.0.2.99", new_keys(tmp_path / "keys"), HVD_START_TIMEOUT="0.5")
    rank.open("wide")
    began_ns = time.monotonic_ns()
    outcome = rank.wait(rank.submit("barrier"), seconds=20)
    check_prompt("the rank was told", time.monotonic_ns() - began_ns - 500_000_000, 6_000_000_000)
    assert outcome.status == Status.ERR_ATTACH_TIMEOUT, outcome
    assert "has no answer about job 'wide' from the rendezvous at 192.0.2.99:9600 (never reached): " in outcome.text
    assert "HVD_RENDEZVOUS or mesh-join names it" in outcome.text


@pytest.mark.parametrize("place, words", [("no-such-host.invalid", "the host no-such-host.invalid is not known here"),
                                          ("127.0.0.1:99999", '"127.0.0.1:99999" is no HOST or HOST:PORT')])
def test_a_place_that_is_none_is_told_with_the_variables(elsewhere, tmp_path, place, words):
    keys = new_keys(tmp_path / "keys")
    outcome = elsewhere(place, keys).try_open("wide")
    assert outcome.status == Status.ERR_NO_DAEMON, outcome
    assert f"hvd_open: HVD_RENDEZVOUS is '{place}', HVD_KEY_FILE is '{keys}': the private hvdd (" in outcome.text
    assert words in outcome.text


def test_a_node_without_its_half_of_the_keys_is_told_which_file_is_missing(elsewhere, tmp_path):
    keys = new_keys(tmp_path / "keys")
    keys.with_suffix(".client").unlink()
    outcome = elsewhere("192.0.2.99", keys).try_open("wide")
    assert outcome.status == Status.ERR_NO_DAEMON, outcome
    assert f"HVD_KEY_FILE is '{keys}': the private hvdd (" in outcome.text
    assert f"the mesh key {keys}.client cannot be used: No such file or directory" in outcome.text
