# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. States and samplers work; run() does not exist yet and says so when it is called."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). What it returns raises NotImplementedError: elastic training does not exist yet."""

    @functools.wraps(func)
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"hvd.elastic.run: elastic training does not exist yet, so {func.__name__}() was not "
                                  "started. Call it without the decorator for a job of fixed size: "
                                  f"{func.__name__}.__wrapped__(state, ...)")
    return refuse
