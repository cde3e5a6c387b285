# SPDX-License-Identifier: Apache-2.0
"""gpu-mps: hvdd runs an MPS server, here a stand-in. What MPS does to kernels only a GPU can say. One that hangs: test_mps_hangs.py."""
import os
import re
import signal

import pytest

from hvt import Daemon, arith, as_service, mps, procs, wait_until
from hvt.gpu import FAKE, REAL, GpuDaemon, gpus
from hvt.job import Job
from hvt.launcher import Launcher

pytestmark = pytest.mark.skipif(REAL or os.path.exists("/usr/bin/nvidia-cuda-mps-control"), reason="has a stand-in for MPS")
INT32 = arith.DTYPES["int32"]


def reduce_once(daemon: GpuDaemon) -> dict[str, str]:
    """A job with an op on a GPU; CUDA's variables of its worker."""
    job = Job(daemon, 2)
    inputs = [arith.pack(INT32, [rank]) for rank in range(2)]
    for outcome in job.run("allreduce", dtype="int32", dims=[1], data=inputs, reduce_op="sum", memory="device", each={"gpu": [0, 0]}):
        assert outcome.ok, outcome
    variables = mps.variables(daemon.worker())
    job.close()
    return variables


def told(daemon: GpuDaemon) -> str:
    """What hvdctl says of MPS."""
    return daemon.ctl.json("gpus")["mps"]


def test_workers_have_a_part_in_the_mps_of_a_hvdd_and_no_device_setting_reaches_it():
    environment = mps.ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "0"}
    with gpus("devices=1", gpu_idle="0", gpu_mps="yes", environment=environment) as daemon:
        pid = mps.control(daemon.token)
        assert reduce_once(daemon)["CUDA_MPS_PIPE_DIRECTORY"] == f"{daemon.address}/mps"
        assert (daemon.address / "mps-log/control.log").read_text() == "devices: all\n"
        assert told(daemon) == f"pid {pid}, in {daemon.address}/mps"
        assert told(daemon) in daemon.ctl.run("gpus").stdout
        checks = {row["check"]: row for row in daemon.ctl.json("doctor", "gpu")["checks"]}
        assert checks["MPS"]["value"] == f"hvdd's own: {told(daemon)}" and "kernel takes" in checks["turns on the GPU"]["value"]
        assert (daemon.address / "mps").stat().st_mode & 0o777 == 0o700


def kill_and_see_the_next(daemon: GpuDaemon) -> int:
    """The pid of the control daemon that hvdd starts again; nothing of the one before it is left, and no worker that was idle."""
    wait_until(lambda: [row["state"] for row in daemon.ctl.json("gpus")["gpus"]] == ["idle"], "an idle worker", 5, 0.02)
    before, servers = mps.control(daemon.token), mps.servers(daemon.token)
    assert servers
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not {before, *servers} & set(procs.with_token(daemon.token)), "the servers to end", 5, 0.02)
    daemon.wait_no_workers()
    after = mps.control(daemon.token)
    assert after in procs.children(daemon.pid)
    return after


def test_one_that_ends_is_started_again_and_one_outlives_a_hvdd_that_is_killed():
    with gpus("devices=1", gpu_idle="100s", gpu_mps="yes", environment=mps.ENVIRONMENT) as daemon:
        reduce_once(daemon)
        second = kill_and_see_the_next(daemon)
        line = daemon.expect_line("mps-ended", "was killed by signal 9 (SIGKILL) and is started again")
        assert 'said="devices: all"' in line.raw
        daemon.kill()
        daemon.start()
        assert daemon.lines("mps-kept") and told(daemon) == f"pid {second}, in {daemon.address}/mps"
        reduce_once(daemon)
        assert mps.control(daemon.token) == second
        kill_and_see_the_next(daemon)


def test_what_an_earlier_hvdd_has_left_is_used_or_removed(tmp_path):
    daemon = GpuDaemon("devices=1", options={"gpu-mps": "yes"})
    path = daemon.environment["PATH"]
    daemon.environment |= mps.ENVIRONMENT
    (daemon.address / "mps").mkdir(0o700, parents=True)  # it was killed before it had made the other folder
    (daemon.address / "mps.pid").write_text("0\n", encoding="utf-8")
    daemon.address.chmod(0o700)
    with daemon:
        first = mps.control(daemon.token)
        daemon.kill()
        daemon.options["gpu-mps"] = "no"
        daemon.environment["PATH"] = str(tmp_path)  # has no program to tell it to quit
        daemon.start()
        assert told(daemon) == f"pid {first}, in {daemon.address}/mps"
        os.kill(first, signal.SIGKILL)
        daemon.expect_line("mps-ended", "and is not started again")
        wait_until(lambda: told(daemon) == "" and not mps.servers(daemon.token), "the servers to end", 5, 0.02)
        assert not list(daemon.address.glob("mps*"))
        daemon.environment["PATH"] = path


def test_where_there_can_be_none_a_sentence_says_so_and_the_job_runs(tmp_path):
    users = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "own"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    cases = [({"PATH": str(tmp_path)}, "is neither in PATH nor in /usr/bin"),
             (mps.ENVIRONMENT | users | {"FAKEMPS": "ends"}, "has ended at its start: there is no  GPU  here")]
    for environment, why in cases:
        with gpus("devices=1", "no-mps", gpu_idle="0", gpu_mps="yes", environment=environment) as daemon:
            assert why in daemon.expect_line("no-mps").raw
            assert told(daemon).startswith("none: ") and why in told(daemon)
            left = {name: value for name, value in reduce_once(daemon).items() if "_MPS_" in name}
            assert left == (users if "FAKEMPS" in environment else {})
            assert not list(daemon.address.glob("mps*"))


def test_a_folder_that_is_not_hvdds_is_left_alone():
    daemon = GpuDaemon("devices=1", options={"gpu-mps": "yes"})
    daemon.environment |= mps.ENVIRONMENT
    control = daemon.address / "mps/control"
    daemon.address.mkdir(0o700)
    control.parent.mkdir()
    control.touch()
    with daemon:
        daemon.expect_line("no-mps", "cannot make the folders mps and mps-log")
        assert [path.name for path in daemon.address.glob("mps*")] == ["mps"] and control.exists()
        control.unlink()
        control.parent.rmdir()


def test_a_hvdd_of_several_users_has_none():
    with Daemon(options={"private": "no", "gpu-mps": "yes"}, user=as_service(), folder_mode=0o777) as daemon:
        daemon.expect_line("no-mps", "this hvdd serves several users")


# ---- hvdrun ----


@pytest.fixture(name="launcher")
def _launcher():
    running = Launcher()
    running.environment |= mps.ENVIRONMENT | {"LD_LIBRARY_PATH": str(FAKE)}
    try:
        yield running
        running.check_gone()
    finally:
        running.sweep()


def test_ranks_of_hvdrun_have_a_part_in_it_and_enough_connections(launcher):
    script = "echo $HVD_ADDRESS $CUDA_MPS_PIPE_DIRECTORY $CUDA_DEVICE_MAX_CONNECTIONS"
    done = launcher.run("-np", "2", "--gpu-mps", "sh", "-c", script)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert len(re.findall(r"^\[[01]\]<stdout>:(\S+) \1/mps 8$", done.stdout, re.MULTILINE)) == 2, done.stdout
    done = launcher.run("-np", "1", "--gpu-mps", "sh", "-c", script, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "3"})
    assert done.stdout.endswith("/mps 3\n")


def test_nothing_of_it_is_left_by_a_hvdd_of_hvdruns_that_is_killed(launcher):
    process = launcher.start("-np", "1", "--gpu-mps", "sleep", "100")
    mps.control(launcher.token)
    wait_until(lambda: "sleep 100" in launcher.processes().values(), "the rank")
    hvdd = next(pid for pid, line in launcher.processes().items() if "--gpu-mps=yes" in line)
    os.kill(hvdd, signal.SIGKILL)
    process.terminate()
    process.communicate(timeout=20)
