# SPDX-License-Identifier: Apache-2.0
"""Callbacks for fit(). Every rank passes the same ones, in the same order."""
from __future__ import annotations

import keras

from hvd._keras import callbacks as _callbacks
from hvd.keras._framework import framework

_made = _callbacks.for_keras(keras, framework, __name__)

BroadcastGlobalVariablesCallback = _made("BroadcastGlobalVariablesCallback", _callbacks.BroadcastGlobalVariables)
MetricAverageCallback = _made("MetricAverageCallback", _callbacks.MetricAverage)
LearningRateScheduleCallback = _made("LearningRateScheduleCallback", _callbacks.LearningRateSchedule)
LearningRateWarmupCallback = _made("LearningRateWarmupCallback", _callbacks.LearningRateWarmup)
BestModelCheckpoint = _made("BestModelCheckpoint", _callbacks.BestModelOfKeras, keras.callbacks.ModelCheckpoint)
