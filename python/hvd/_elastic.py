# SPDX-License-Identifier: Apache-2.0
"""What elastic training's names of all frameworks share."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). What it returns raises NotImplementedError: elastic training does not exist yet."""

    @functools.wraps(func)
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"hvd.elastic.run: elastic training does not exist yet, so {func.__name__}() was not "
                                  "started. Call it without the decorator for a job of fixed size: "
                                  f"{func.__name__}.__wrapped__(state, ...)")
    return refuse


class State:
    """What states of all frameworks share. A state has `_reset_callbacks`, a list, and its own save(), restore(), sync()."""
    _reset_callbacks: list[Callable[[], Any]]

    def save(self) -> None:
        """Keeps a copy of everything in memory."""
        raise NotImplementedError

    def commit(self) -> None:
        """save(), then check_host_updates()."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Nothing: hosts do not come and go yet."""

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions for on_reset() to call."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """After the ranks have changed."""
        for callback in self._reset_callbacks:
            callback()
