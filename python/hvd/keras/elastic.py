# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. The state, the callbacks and run() work in a job of fixed size, without resets."""
from __future__ import annotations

import keras

from hvd._keras import callbacks as _callbacks, elastic as _elastic
from hvd._keras.elastic import KerasState
from hvd.keras._framework import framework

run = framework.elastic_run
_made = _callbacks.for_keras(keras, framework, __name__)

CommitStateCallback = _made("CommitStateCallback", _elastic.CommitState)
UpdateBatchStateCallback = _made("UpdateBatchStateCallback", _elastic.UpdateBatchState)
UpdateEpochStateCallback = _made("UpdateEpochStateCallback", _elastic.UpdateEpochState)

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
