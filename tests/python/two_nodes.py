# SPDX-License-Identifier: Apache-2.0
"""Scripts in the way people write them for Horovod, on two nodes, started by hvdrun over a real sshd."""
from __future__ import annotations

import re

import pytest

from conftest import PROGRAMS, clean_environment
from hvt.nodes import Nodes, missing

SAID = re.compile(r"rank (\d) of 2 on (\S+): accuracy ([0-9.]+) %, weights ([0-9a-f]+)")
TRAVELS = ("OMP_NUM_THREADS", "PATH", "PYTHONPATH", "HVD_LIBRARY", "TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS")


def check_that_it_trains(program: str) -> None:
    """One rank on each node; both end with the same model, which has learnt."""
    why = missing()
    if why:
        pytest.skip(why)
    mine = clean_environment()
    with Nodes(2, ssh=True) as nodes:
        environment = nodes[0].environment() | {name: mine[name] for name in TRAVELS if name in mine}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(nodes.shared)  # which PyTorch makes, and leaves
        done = nodes[0].run(["hvdrun", "-H", "n1:1,n2:1", "python", str(PROGRAMS / program)], env=environment, timeout=240)
        said = SAID.findall(done.stdout)
        assert done.returncode == 0 and sorted((rank, host) for rank, host, _, _ in said) == [("0", "n1"), ("1", "n2")], done
        assert len({weights for _, _, _, weights in said}) == 1 and min(float(accuracy) for _, _, accuracy, _ in said) >= 80, said
        for node in nodes:
            node.check_clean()
