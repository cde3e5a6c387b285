# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.sync_batch_norm."""
from __future__ import annotations

from hvd.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
