# SPDX-License-Identifier: Apache-2.0
"""A script in the way people write it for Horovod, on two nodes, started by hvdrun over a real sshd. scripts/nodes.sh does so with
what is installed, also for TensorFlow and Keras."""
from __future__ import annotations

import re

import pytest

from conftest import PROGRAMS, clean_environment
from hvt.nodes import Nodes, missing

SAID = re.compile(r"rank (\d) of 2 on (\S+): accuracy ([0-9.]+) %, weights ([0-9a-f]+)")


@pytest.fixture(name="nodes")
def _nodes():
    why = missing()
    if why:
        pytest.skip(why)
    with Nodes(2, ssh=True) as nodes:
        yield nodes


def test_a_script_trains_on_two_nodes_and_both_have_the_same_model(nodes):
    mine = clean_environment()
    environment = nodes[0].environment() | {name: mine[name] for name in ("OMP_NUM_THREADS", "PATH", "PYTHONPATH", "HVD_LIBRARY")}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(nodes.shared)  # which PyTorch makes, and leaves
    done = nodes[0].run(["hvdrun", "-H", "n1:1,n2:1", "python", str(PROGRAMS / "horovod_torch.py")], env=environment, timeout=240)
    said = SAID.findall(done.stdout)
    assert done.returncode == 0 and sorted((rank, host) for rank, host, _, _ in said) == [("0", "n1"), ("1", "n2")], done
    assert len({weights for _, _, _, weights in said}) == 1 and min(float(accuracy) for _, _, accuracy, _ in said) >= 80, said
    for node in nodes:
        node.check_clean()
