# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.elastic.state."""
from __future__ import annotations

from hvd.torch.elastic.state import (ModelStateHandler, OptimizerStateHandler, SamplerStateHandler, StateHandler,
                                     TorchState, get_handler_registry, set_handler_registry)

__all__ = ["ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState",
           "get_handler_registry", "set_handler_registry"]
