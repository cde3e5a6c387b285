# SPDX-License-Identifier: Apache-2.0
"""Callbacks for fit(). Every rank passes the same ones, in the same order."""
from __future__ import annotations

from tensorflow import keras

from hvd._keras import _tensorflow, callbacks as _callbacks

_made = _callbacks.for_keras(keras, _tensorflow, __name__)

BroadcastGlobalVariablesCallback = _made("BroadcastGlobalVariablesCallback", _callbacks.BroadcastGlobalVariables)
MetricAverageCallback = _made("MetricAverageCallback", _callbacks.MetricAverage)
LearningRateScheduleCallback = _made("LearningRateScheduleCallback", _callbacks.LearningRateSchedule)
LearningRateWarmupCallback = _made("LearningRateWarmupCallback", _callbacks.LearningRateWarmup)
BestModelCheckpoint = _made("BestModelCheckpoint", _callbacks.BestModel, keras.callbacks.ModelCheckpoint)
