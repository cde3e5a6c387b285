# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.gradient_aggregation_eager."""
from __future__ import annotations

from hvd.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

__all__ = ["LocalGradientAggregationHelperEager"]
