# SPDX-License-Identifier: Apache-2.0
"""Ranks that other launchers have started on two nodes: real torchrun, Open MPI, Slurm, MPICH and Intel MPI. No hvdrun and no hvdd is there before.

Every rank has HVD_RENDEZVOUS and HVD_KEY_FILE; nothing else is done for hvd."""
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
from hvt.ctl import new_keys
from hvt.nodes import Node, Nodes, missing
from hvt.wait import wait_until

WHO = str(PROGRAMS / "who_am_i.py")
THERE = [f"rank {rank} of 4, local {rank % 2} of 2, sum 10" for rank in range(4)]
OF_PYTHON = ("HVD_LIBRARY", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER")
OF_HVD = ("HVD_RENDEZVOUS", "HVD_KEY_FILE")
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


@pytest.fixture(name="nodes")
def _nodes() -> Iterator[Nodes]:
    """Two, with keys in the directory that they share."""
    why = missing()
    if why:
        pytest.skip(why)
    with Nodes(2, ssh=True) as nodes:
        new_keys(nodes.shared / "keys")
        yield nodes
        wait_until(lambda: not hvdds(nodes), lambda: f"hvdd to end: {hvdds(nodes)}", IDLE_S + 20, 0.2)


def settings(nodes: Nodes, node: Node, **more: str) -> dict[str, str]:
    """What a user would have in the environment."""
    mine = clean_environment()
    return (node.environment() | {name: mine[name] for name in OF_PYTHON}
            | {"HVD_RENDEZVOUS": "n1", "HVD_KEY_FILE": str(nodes.shared / "keys")} | more)


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


def test_mpirun(nodes):
    """Debian's Open MPI, over ssh."""
    sent = [word for name in (*OF_PYTHON, *OF_HVD) for word in ("-x", name)]
    done = start(nodes, ["mpirun", "--allow-run-as-root", "-np", "4", "-H", "n1:2,n2:2", "-mca",
                         "oob_tcp_if_include", "eth0", "-mca", "btl_tcp_if_include", "eth0", *sent, sys.executable, WHO])
    assert said(done) == THERE


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
def slurm(nodes: Nodes) -> Iterator[str]:
    """A real Slurm of both nodes; the path of its slurm.conf."""
    folder = nodes.shared / "slurm"
    folder.mkdir()
    config = str(write_slurm_conf(nodes, folder))
    with contextlib.ExitStack() as stack:
        def daemon(node: Node, *command: str) -> None:
            log = stack.enter_context((folder / "log").open("ab"))
            process = node.popen(command, env=node.environment() | {"SLURM_CONF": config, "PATH": f"{os.environ['PATH']}:/usr/sbin"},
                                 stdout=log, stderr=log)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

        def idle() -> bool:
            done = nodes[0].run(["sinfo", "-h", "-o", "%T %D"], env=nodes[0].environment() | {"SLURM_CONF": config})
            return done.stdout == "idle 2\n"
        daemon(nodes[0], *munged(folder))
        wait_until((folder / "munge" / "socket").exists, "munged to listen")
        daemon(nodes[0], "slurmctld", "-D", "-f", config)
        for node in nodes:
            daemon(node, "slurmd", "-D", "-N", node.name, "-f", config)
        wait_until(idle, lambda: f"both nodes of Slurm: {(folder / 'log').read_text()}", 60, 0.5)
        yield config


def test_srun(nodes, slurm):
    done = start(nodes, ["srun", "-N2", "--ntasks-per-node=2", "--overcommit", sys.executable, WHO], SLURM_CONF=slurm)
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
    """From PyPI into the build folder, once. In the environment of the tests it would take the place of Open MPI's mpirun."""
    place = BUILD / request.param
    with (BUILD / f"{request.param}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = next(place.rglob("mpiexec.hydra"), None)
        if program is None:
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--target", str(place), request.param], check=True, timeout=300, env=clean_environment(PYTHONPATH=""))
            program = next(place.rglob("mpiexec.hydra"))
    return [str(program), HYDRAS[request.param], "ssh"]


def test_hydra(nodes, hydra):
    done = start(nodes, [*hydra, "-iface", "eth0", "-hosts", "n1,n2", "-ppn", "2", "-np", "4", sys.executable, WHO])
    assert said(done) == THERE


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
