# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.gradient_aggregation."""
from __future__ import annotations

from hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelper"]
