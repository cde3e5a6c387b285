# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. Scripts that import them start; what is called says that it does not exist yet."""
from __future__ import annotations

from typing import Any

from hvd._elastic import run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class _Absent:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(f"hvd.elastic.{type(self).__name__}: elastic training does not exist yet. In a job of "
                                  "fixed size hvd.broadcast_variables and checkpoints of rank 0 take its place")


class TensorFlowState(_Absent):
    """(variables=None, session=None, **values): NotImplementedError."""


class TensorFlowKerasState(_Absent):
    """(model, optimizer=None, backend=None, **values): NotImplementedError."""
