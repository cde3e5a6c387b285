# SPDX-License-Identifier: Apache-2.0
"""hvd.keras.elastic."""
from __future__ import annotations

from hvd.keras.elastic import (CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback,
                               run)

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
