# SPDX-License-Identifier: Apache-2.0
"""Ranks that other launchers have started: real ones, Open MPI, Slurm and torchrun."""
from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from conftest import PROGRAMS, TORCHRUN, clean_environment
from hvt.ports import free_port
from hvt.wait import wait_until

WHO = str(PROGRAMS / "who_am_i.py")
HERE = [f"rank {rank} of 2, local {rank} of 2, sum 3" for rank in range(2)]


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks wrote, without the launchers' prefixes; mpirun may forward two ranks' lines as one."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return sorted(re.findall(r"rank \d+ of \d+, local \d+ of \d+, sum \d+", done.stdout))


def test_hvdrun(ranks):
    assert said(ranks.run(2, WHO)) == HERE


@pytest.mark.parametrize("flags", [
    ("--oversubscribe",),
    ("--oversubscribe", "-bind-to", "none", "-map-by", "slot", "-x", "PATH", "-mca", "pml", "ob1", "-mca", "btl",
     "^openib", "-mca", "btl_tcp_if_include", "lo")], ids=["plain", "as in old posts"])
def test_mpirun(ranks, flags):
    """Debian's Open MPI."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    assert said(ranks.start(["mpirun", *as_root, "-np", "2", *flags, sys.executable, WHO])) == HERE


def test_torchrun(ranks):
    assert said(ranks.start([*TORCHRUN, "--nproc-per-node", "2", WHO])) == HERE


@contextlib.contextmanager
def background(command: list[str], log: pathlib.Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Slurm, ended when the test is over."""
    with log.open("wb") as sink, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                                                  env=dict(os.environ, **settings)) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def munge() -> Iterator[None]:
    """A munged that answers, as the package's service would start it; stopped afterwards if we had to start it."""
    def answers() -> bool:
        return subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0
    if answers():
        yield
        return
    for place in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "0711", place], check=True)
    subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True, timeout=30)
    try:
        wait_until(answers, "munge to answer", 60, 0.1)
        yield
    finally:
        subprocess.run(["runuser", "-u", "munge", "--", "munged", "--stop"], check=True, timeout=30)


@pytest.fixture
def slurm() -> Iterator[str]:
    """A real Slurm of one node; the path of its slurm.conf."""
    if os.geteuid() != 0 or not shutil.which("slurmctld"):
        pytest.skip("Slurm's daemons are started by root, and slurm-wlm has to be installed (scripts/deps.sh test)")
    with munge(), tempfile.TemporaryDirectory(prefix="hvt-slurm-") as name:
        folder, host = pathlib.Path(name), socket.gethostname()
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        config = folder / "slurm.conf"
        config.write_text(f"""ClusterName=hvt
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=p Nodes={host} Default=YES State=UP OverSubscribe=FORCE:4
""")
        settings = {"SLURM_CONF": str(config)}

        def idle() -> bool:
            for daemon, log in ((controller, "ctl.log"), (node, "d.log")):
                assert daemon.poll() is None, f"{daemon.args[0]} has ended:\n{(folder / log).read_text()}"
            return "idle" in subprocess.run(["sinfo", "-h", "-o", "%t"], env=dict(os.environ, **settings),
                                            capture_output=True, text=True, check=False).stdout
        with background(["slurmctld", "-D", "-f", str(config)], folder / "ctl.log", **settings) as controller, \
                background(["slurmd", "-D", "-f", str(config), "-N", host], folder / "d.log", **settings) as node:
            wait_until(idle, "sinfo to say idle", 60, 0.1)
            yield str(config)


def test_srun(ranks, slurm):
    done = ranks.start(["srun", "-n", "2", "--overcommit", sys.executable, WHO], env={"SLURM_CONF": slurm})
    assert said(done) == HERE


def test_nested_launchers_mean_the_innermost(ranks):
    """torchrun started by one task of an MPI job."""
    outer = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "9", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
             "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    assert said(ranks.start([*TORCHRUN, "--nproc-per-node", "2", WHO], env=outer)) == HERE
    assert clean_environment().keys().isdisjoint(outer)


TWO_NODES = {
    "torchrun": {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
                 "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    "slurm": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "2",
              "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_ID": "7",
              "SLURM_STEP_ID": "0"},
    "pmi": {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_JOBID": "7.0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4",
            "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    "openmpi": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "horovodrun": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2",
                   "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "2"},
}


@pytest.mark.parametrize("launcher", TWO_NODES)
def test_a_job_on_two_nodes_is_an_error_of_init(ranks, launcher):
    done = ranks.start([sys.executable, WHO], env=TWO_NODES[launcher])
    assert done.returncode != 0
    assert "ValueError: Horovod initialization failed. hvd_open: rank 0 of job" in done.stderr
    assert f"is one of 4 ranks on 2 nodes (from {launcher}: " in done.stderr
    assert "this hvdd has no mesh to other nodes; start the job with hvdrun -H" in done.stderr


def test_torchrun_over_two_nodes_is_an_error_of_every_rank(ranks):
    """Two agents of torchrun on this machine say what two nodes would."""
    port, program = free_port(), "import hvd; hvd.init()"
    script = ranks.folder / "init.py"
    script.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
               "--master-addr=127.0.0.1", f"--master-port={port}", "--max-restarts=0"]
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        agents = [both.submit(ranks.start, [*command, f"--node-rank={node}", str(script)]) for node in range(2)]
    for node, agent in enumerate(agents):
        assert agent.result().returncode != 0
        assert f"rank {node} of job " in agent.result().stderr
        assert "is one of 2 ranks on 2 nodes (from torchrun: local_size 1, cross_size 2)" in agent.result().stderr


def test_a_torch_process_group_over_two_nodes_is_an_error(ranks):
    """It gives rank and size itself, which are torchrun's."""
    script = ("import torch.distributed as dist, hvd.torch.distributed; "
              "dist.init_process_group('hvd', store=dist.HashStore(), rank=0, world_size=4)")
    done = ranks.start([sys.executable, "-c", script], env=TWO_NODES["torchrun"])
    assert done.returncode != 0 and "is one of 4 ranks on 2 nodes (from arguments: local_size 2" in done.stderr
