# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.optimizer."""
from __future__ import annotations

from hvd.torch.optimizer import DistributedOptimizer, _DistributedAdasumOptimizer, _DistributedOptimizer

__all__ = ["DistributedOptimizer", "_DistributedAdasumOptimizer", "_DistributedOptimizer"]
