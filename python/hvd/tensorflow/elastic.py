# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. The states do their work in a job of fixed size, eagerly and with sessions of TensorFlow 1,
and so does run(), without resets."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd import _elastic
from hvd._elastic import VariablesState
from hvd._keras.elastic import KerasState
from hvd.exceptions import HorovodInternalError

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for func(state, ...). The state becomes rank 0's on every rank, then `func` is called once: a job has a
    fixed size, so nothing is restored and begun anew. HorovodInternalError, as of a rank that was lost, ends the call; it
    takes the place of the tf.errors.UnknownError that an op of TensorFlow raises then."""

    @functools.wraps(func)
    def train(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.UnknownError as error:
            if "Horovod" not in error.message:
                raise
            raise HorovodInternalError(error.message) from error
    return _elastic.run(train)


def _read_in(session: Any, variables: Sequence[Any]) -> list[np.ndarray]:
    return list(session.run(list(variables)))


def _write_in(session: Any, variables: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """By the ops that initialise them, so that a graph which is finalized will do."""
    ops = [variable.initializer for variable in variables]
    session.run(ops, {op.inputs[1]: array for op, array in zip(ops, arrays)})


class TensorFlowState(VariablesState):
    """Variables (the graph's global ones, if none are given), and plain values: each further keyword becomes an attribute.

    session: where there is no eager execution, the session that has the variables; by default the one that is entered.
    ValueError: there is none, or there are no variables."""
    _name = "tensorflow_state"

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables or tf.compat.v1.global_variables())
        self.session = None if tf.executing_eagerly() else session or tf.compat.v1.get_default_session()
        if not self.variables:
            raise ValueError("TensorFlowState: there are no variables to keep; pass them as a list (eagerly there are no "
                             "global variables)")
        if self.session is None and not tf.executing_eagerly():
            raise ValueError("TensorFlowState: pass the session that has the variables, or make the state inside of it "
                             "(with session.as_default())")
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return self.variables

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        if self.session is not None:
            return _read_in(self.session, variables)
        return [np.array(variable.numpy()) for variable in variables]

    def _write(self, variables: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        if self.session is not None:
            _write_in(self.session, variables, arrays)
            return
        for variable, array in zip(variables, arrays):
            variable.assign(array)


class TensorFlowKerasState(KerasState):
    """A built model and its optimizer, and plain values: each further keyword becomes an attribute.

    backend: keras.backend, whose session has the variables where there is no eager execution. ValueError: it is needed
    and missing, or the model is not built."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.backend = backend
        if backend is None and not tf.executing_eagerly():
            raise ValueError("TensorFlowKerasState: without eager execution pass backend=keras.backend, which has the "
                             "session")
        super().__init__(model, optimizer, **kwargs)

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        return super()._read(variables) if tf.executing_eagerly() else _read_in(self.backend.get_session(), variables)

    def _write(self, variables: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        if tf.executing_eagerly():
            super()._write(variables, arrays)
        else:
            _write_in(self.backend.get_session(), variables, arrays)

    def _complete(self) -> None:
        if tf.executing_eagerly():  # else a session would not know what is made now
            super()._complete()
