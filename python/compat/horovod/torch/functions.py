# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.functions."""
from __future__ import annotations

from hvd.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
