# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.functions."""
from __future__ import annotations

from hvd.tensorflow.functions import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
