# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.sync_batch_norm."""
from __future__ import annotations

from hvd.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
