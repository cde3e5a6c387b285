# SPDX-License-Identifier: Apache-2.0
"""An MPS that does not do what it should in time, here a stand-in."""
import os
import time

import pytest

from hvt import mps, scaled, wait_until
from hvt.gpu import REAL, gpus

pytestmark = pytest.mark.skipif(REAL or os.path.exists("/usr/bin/nvidia-cuda-mps-control"), reason="has a stand-in for MPS")


def test_one_that_does_not_quit_is_killed_and_hvdd_ends_in_time():
    with gpus("devices=1", "mps-killed", gpu_idle="0", gpu_mps="yes", environment=mps.ENVIRONMENT | {"FAKEMPS": "deaf"}) as daemon:
        mps.control(daemon.token)
        begin = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - begin < scaled(6)
        assert daemon.lines("mps-killed")


def test_one_that_does_not_listen_is_ended_and_jobs_run_without_it():
    with gpus("devices=1", gpu_idle="0", gpu_mps="yes", environment=mps.ENVIRONMENT | {"FAKEMPS": "slow"}) as daemon:
        daemon.expect_line("no-mps", "does not listen after 3 s, and was ended")
        assert not list(daemon.address.glob("mps*"))
        wait_until(lambda: not mps.servers(daemon.token), "its server to end", 5, 0.02)
