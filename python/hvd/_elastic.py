# SPDX-License-Identifier: Apache-2.0
"""What elastic training's names of all frameworks share."""
from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd import _layouts, _session
from hvd.objects import broadcast_object

if TYPE_CHECKING:  # hvd.torch needs no NumPy
    import numpy as np

_log = logging.getLogger("hvd")


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). The state becomes rank 0's on every rank, then `func` is called once: a job has a
    fixed size, so nothing is restored and begun anew. HorovodInternalError, as of a rank that was lost, ends the call."""

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> Any:
        state.sync()
        return func(state, *args, **kwargs)
    return train


_told: set[tuple[str, str]] = set()


def copies_of(values: Mapping[str, Any], what: str, copy_of: Callable[[Any, dict[int, Any]], Any] = copy.deepcopy,
              memo: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """Copies of a state's plain values, by copy_of(value, memo). What cannot be copied, as an iterator of a loader, stands for
    itself, and the logger "hvd" says so once. `what`: the state's class. `memo`: as that of copy.deepcopy."""
    copies, known = {}, dict(memo or {})
    for name, value in values.items():
        seen = dict(known)  # of a copy that fails nothing may go into another
        try:
            copies[name] = copy_of(value, seen)
            known = seen
        except Exception as error:  # pylint: disable=broad-exception-caught  # of whatever class the value is
            copies[name] = value
            if (what, name) not in _told:
                _told.add((what, name))
                _log.warning("%s: '%s' cannot be copied (%s). So save() keeps the object itself, and what changes in it "
                             "stays changed after restore()", what, name, error)
    return copies


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

    def reset(self) -> None:
        """Nothing; for states that have to do with the number of ranks."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Nothing: hosts do not come and go yet."""

    def on_reset(self) -> None:
        """After the ranks have changed: reset(), then the callbacks."""
        self.reset()
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

    # ---- what a framework says ----

    def _variables(self) -> list[Any]:
        """All variables that there are now."""
        raise NotImplementedError

    def _own_of_rank(self) -> list[Any]:
        """Those of them that sync() leaves as they are."""
        return []

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """Their values, in memory that stays as it is."""
        raise NotImplementedError

    def _write(self, variables: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        """Gives them these values."""
        raise NotImplementedError

    def _complete(self) -> None:
        """Makes the variables that training would make; other ranks may have them already."""

    # ---- what users call ----

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keeps a copy of everything in memory."""
        variables = self._variables()
        self._saved = variables, self._read(variables), copies_of(self._values(), type(self).__name__)

    def restore(self) -> None:
        """Back to the last save(). Variables that were made since, as slots of an optimizer, become zeroes. ValueError: there
        are others in their place, and not as many."""
        saved, arrays, values = self._saved
        variables = self._variables()
        known = {id(variable): array for variable, array in zip(saved, arrays)}
        newer = [variable for variable in variables if id(variable) not in known]
        if len(variables) == len(saved) + len(newer):
            known.update((id(variable), _zeroed(array)) for variable, array in zip(newer, self._read(newer)))
            arrays = [known[id(variable)] for variable in variables]
        elif len(variables) != len(saved):
            raise ValueError(f"{type(self).__name__}: {len(saved)} variables were saved, and now there are {len(variables)}; "
                             "save() the state after such a change")
        self._write(variables, arrays)
        self._assign(copies_of(values, type(self).__name__))

    def sync(self) -> None:
        """Makes everything rank 0's on every rank, and saves it. Collective over all ranks. ValueError on all of them: their
        variables are not alike."""
        variables, arrays = self._alike()
        is_root = _session.current().rank == 0
        arrays, values = broadcast_object((arrays, self._values()) if is_root else None, root_rank=0, name=self._name)
        if not is_root:
            self._write(variables, arrays)
            self._assign(values)
        self.save()

    def _shared(self) -> tuple[list[Any], list[np.ndarray]]:
        own = {id(variable) for variable in self._own_of_rank()}
        variables = [variable for variable in self._variables() if id(variable) not in own]
        return variables, self._read(variables)

    def _alike(self) -> tuple[list[Any], list[np.ndarray]]:
        """The variables that the ranks share, the same on all of them, and their values here. Where a rank lacks some,
        because its optimizer has made no step yet, they are made."""
        variables, arrays = self._shared()
        if not _layouts.are_alike(self._name, _layouts_of(arrays)):
            self._complete()
            variables, arrays = self._shared()
            if not _layouts.are_alike(self._name, _layouts_of(arrays)):
                names = [str(getattr(variable, "path", None) or variable.name) for variable in variables]
                _layouts.raise_difference(self._name, _layouts_of(arrays), names, "make the same model and optimizer on every "
                                          "rank, and build them, before their state is made rank 0's")
        return variables, arrays


def _zeroed(array: np.ndarray) -> np.ndarray:
    array.fill(0)
    return array


def _layouts_of(arrays: Sequence[np.ndarray]) -> list[_layouts.Layout]:
    return [(array.dtype.name, list(array.shape)) for array in arrays]
