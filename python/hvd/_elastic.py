# SPDX-License-Identifier: Apache-2.0
"""What elastic training's names of all frameworks share."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). What it returns raises NotImplementedError: elastic training does not exist yet."""

    @functools.wraps(func)
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"hvd.elastic.run: elastic training does not exist yet, so {func.__name__}() was not "
                                  "started. Call it without the decorator for a job of fixed size: "
                                  f"{func.__name__}.__wrapped__(state, ...)")
    return refuse
