# SPDX-License-Identifier: Apache-2.0
"""hvd.keras.callbacks."""
from __future__ import annotations

from hvd.keras.callbacks import (BestModelCheckpoint, BroadcastGlobalVariablesCallback, LearningRateScheduleCallback,
                                 LearningRateWarmupCallback, MetricAverageCallback)

__all__ = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
           "LearningRateWarmupCallback", "MetricAverageCallback"]
