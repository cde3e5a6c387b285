# SPDX-License-Identifier: Apache-2.0
"""What elastic training's names of all frameworks share."""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hvd.objects import broadcast_object

if TYPE_CHECKING:  # hvd.torch needs no NumPy
    import numpy as np


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). The state becomes rank 0's on every rank, then `func` is called once: a job has a
    fixed size, so nothing is restored and begun anew. HorovodInternalError, as of a rank that was lost, ends the call."""

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> Any:
        state.sync()
        return func(state, *args, **kwargs)
    return train


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


class VariablesState(State):
    """A state of variables, which are saved as arrays, and of values that are attributes, which are saved by copy."""
    _name = "variables_state"

    def __init__(self, **values: Any) -> None:
        self._names = list(values)
        self._reset_callbacks: list[Callable[[], Any]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _read(self) -> list[np.ndarray]:
        """The variables' values, in memory that stays as it is."""
        raise NotImplementedError

    def _write(self, arrays: Sequence[np.ndarray]) -> None:
        """Gives the variables these values."""
        raise NotImplementedError

    def _now(self) -> tuple[list[np.ndarray], dict[str, Any]]:
        return self._read(), copy.deepcopy({name: getattr(self, name) for name in self._names})

    def _become(self, saved: tuple[list[np.ndarray], dict[str, Any]]) -> None:
        arrays, values = saved
        self._write(arrays)
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keeps a copy of everything in memory."""
        self._saved = self._now()

    def restore(self) -> None:
        """Back to the last save()."""
        self._become(self._saved)

    def sync(self) -> None:
        """Makes everything rank 0's on every rank, and saves it. Collective over all ranks."""
        self._saved = broadcast_object(self._now(), root_rank=0, name=self._name)
        self._become(self._saved)
