# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.elastic."""
from __future__ import annotations

from hvd.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
