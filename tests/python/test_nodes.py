# SPDX-License-Identifier: Apache-2.0
"""PyTorch on two nodes. scripts/nodes.sh trains on them with what is installed."""
from two_nodes import check_that_it_trains


def test_a_script_trains_on_two_nodes_and_both_have_the_same_model() -> None:
    check_that_it_trains("horovod_torch.py")
