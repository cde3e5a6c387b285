# SPDX-License-Identifier: Apache-2.0
"""Models with a distributed optimizer are not compiled by XLA (nor by torch.compile), which has no ops of ours.

Keras asks a model's `jit_compile` whenever it makes a function to train with, so that is where it is answered: whatever
compile() was told, by its "auto" or by hand, and whenever the model got its optimizer.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd._session import logger

_TAUGHT: set[type] = set()


def teach(keras: Any, owner_of: Callable[[Any], Any]) -> None:
    """Once for each Keras in the process. `owner_of`: of optimizer.py."""
    model = keras.Model
    own = getattr(model, "jit_compile", None)
    if model in _TAUGHT or not isinstance(own, property):
        return
    _TAUGHT.add(model)
    said = []

    def jit_compile(self: Any) -> Any:
        wanted = own.fget(self)
        if not wanted or owner_of(getattr(self, "optimizer", None)) is None:
            return wanted
        if not said:
            said.append(True)
            logger.warning("jit_compile is off for models with a distributed optimizer: XLA cannot compile hvd's ops")
        return False
    model.jit_compile = property(jit_compile, own.fset, own.fdel, own.__doc__)
