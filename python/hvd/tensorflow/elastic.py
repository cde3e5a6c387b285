# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. Scripts that import them start; what is called says that it does not exist yet."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). What it returns raises NotImplementedError: elastic training does not exist yet."""

    @functools.wraps(func)
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"hvd.elastic.run: elastic training does not exist yet, so {func.__name__}() was not "
                                  "started. Call it without the decorator for a job of fixed size: "
                                  f"{func.__name__}.__wrapped__(state, ...)")
    return refuse


class _Absent:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(f"hvd.elastic.{type(self).__name__}: elastic training does not exist yet. In a job of "
                                  "fixed size hvd.broadcast_variables and checkpoints of rank 0 take its place")


class TensorFlowState(_Absent):
    """(variables=None, session=None, **values): NotImplementedError."""


class TensorFlowKerasState(_Absent):
    """(model, optimizer=None, backend=None, **values): NotImplementedError."""
