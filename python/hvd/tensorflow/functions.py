# SPDX-License-Identifier: Apache-2.0
"""Variables and Python objects from one rank to the others."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd import _layouts, _native, collectives, numpy as hvd_numpy, objects
from hvd.basics import rank
from hvd.process_sets import ProcessSet, global_process_set, id_of
from hvd.tensorflow import mpi_ops
from hvd.tensorflow._reductions import on_device
from hvd.tensorflow.util import name_of, variable_of

_log = logging.getLogger("hvd")

#: How much is on the way at once, eagerly: so much memory is needed beside the variables.
_AT_ONCE = 256 << 20

#: What graphs send types as that no op has.
_AS = {tf.uint32: tf.int32, tf.uint64: tf.int64, tf.complex64: tf.float32, tf.complex128: tf.float64}


# ---- variables ----


def _existing(variable: Any) -> Any:
    """The tf.Variable of what a user calls a variable. ValueError: there is none, none yet, or one of strings."""
    found = variable_of(variable)
    if found is None:
        raise ValueError(f"broadcast_variables: the variable {name_of(variable)} has no value yet; build the model, or call "
                         "it once, before its variables are broadcast")
    if not hasattr(found, "assign"):
        raise ValueError(f"broadcast_variables needs variables; {type(variable).__name__} is none. Use hvd.broadcast for "
                         "tensors and hvd.broadcast_object for anything else")
    if found.dtype.base_dtype == tf.string:
        raise ValueError(f"broadcast_variables: the variable {found.name} holds strings; send them by "
                         "hvd.broadcast_object")
    return found


def _layout(variable: Any) -> tuple[str, list[int]]:
    """Type and shape of its value; a variable's own shape may leave dimensions open."""
    shape = variable.shape if variable.shape.is_fully_defined() else variable.read_value().shape
    return variable.dtype.base_dtype.name, shape.as_list()


def _agree(layout: Sequence[tuple[str, list[int]]], names: Sequence[str], process_set: ProcessSet) -> None:
    """ValueError on every rank if they have not the same variables: the first that differs, and what to do. Without
    this a rank that has one more would wait for ever."""
    if not _layouts.are_alike("broadcast_variables", layout, process_set):
        _layouts.raise_difference("broadcast_variables", layout, names, "make the same model on every rank, and build it, "
                                  "before its variables are broadcast", process_set)


def _sendable(array: Any) -> Any:
    """The same memory in a type that ops have."""
    return array if array.dtype.name in _native.DTYPES else array.reshape(-1).view(np.uint8)


def _own_copy(variable: Any) -> Any:
    """The variable's value in memory that may be written."""
    array = np.asarray(variable.numpy(), variable.dtype.base_dtype.as_numpy_dtype, order="C")
    return array if array.flags.writeable else array.copy()


def _broadcast_now(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    """Eagerly: as many as fit in _AT_ONCE are on their way before the first is waited for."""
    names = [name_of(variable) for variable in variables]
    found = [_existing(variable) for variable in variables]
    is_root = rank() == root_rank
    _agree([_layout(variable) for variable in found], names, process_set)
    waiting: list[Any] = []

    def land() -> None:
        for started, array, variable in waiting:
            collectives.complete(started)
            if not is_root:
                variable.assign(array)
        waiting.clear()

    weight = 0
    for place, variable in enumerate(found):
        array = _own_copy(variable)
        wire = _sendable(array)
        started = hvd_numpy.engine.start_broadcast(wire, wire, root_rank, f"broadcast_variables.{place}.{names[place]}",
                                                   process_set)
        waiting.append((started, array, variable))
        weight += array.nbytes
        if weight > _AT_ONCE:
            land()
            weight = 0
    land()


def _broadcast_in_graph(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> Any:
    """In a tf.function, which runs it in any case, None; else an op that does it. Nothing orders the broadcasts."""
    assigned = []
    for place, variable in enumerate(variables):
        found = _existing(variable)
        value = tf.convert_to_tensor(found)
        wire = tf.bitcast(value, _AS[value.dtype]) if value.dtype in _AS else value
        sent = mpi_ops.broadcast(wire, root_rank, name=f"broadcast_variables_{place}.{name_of(variable)}",
                                 process_set=process_set)
        assigned.append(found.assign(tf.bitcast(sent, value.dtype) if value.dtype in _AS else sent))
    return None if tf.compat.v1.get_default_graph().building_function else tf.group(*assigned)


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set,
                        inplace: bool = False) -> Any:
    """Gives variables of tf and of Keras the values that they have on the global rank `root_rank`.

    Eagerly this blocks until it is done; in a tf.function it is part of the function; in a graph of TensorFlow 1 the
    result is an op for session.run. The variables are the same, in the same order, on all ranks of the set. `inplace` is
    accepted: a variable is always assigned to, never replaced.
    ValueError: variables without a value yet, of strings, or not the same on all ranks (eagerly)."""
    del inplace
    variables = list(variables)
    if not variables:
        _log.warning("broadcast_variables was given no variables, so nothing was broadcast. A Keras model or optimizer has "
                     "them once it is built: call it once, or build() it, before")
    if tf.executing_eagerly():
        id_of(process_set, "Broadcast")
        return _broadcast_now(variables, root_rank, process_set)
    return _broadcast_in_graph(variables, root_rank, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """An op that gives all global variables of the default graph the values they have on the global rank `root_rank`.
    RuntimeError: eagerly there are none. tf.errors.FailedPreconditionError: the graph has none yet."""
    if tf.executing_eagerly():
        raise RuntimeError("hvd.broadcast_global_variables() does not support eager execution. Please use "
                           "`hvd.broadcast_variables(<model/optimizer variables>)` instead.")
    variables = tf.compat.v1.global_variables()
    if not variables:
        raise tf.errors.FailedPreconditionError(
            None, None, "broadcast_global_variables: this graph has no global variables yet; call it after the model and "
                        "the optimizer's train op have been made")
    return broadcast_variables(variables, root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For MonitoredTrainingSession: broadcasts all global variables when the session has been made, whether they were
    initialised or restored from a checkpoint, which only the root needs to have.

    root_rank: the global rank whose values all get. device: where to place the ops; "": anywhere."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    @staticmethod
    def _broadcast(root_rank: int) -> Any:
        return broadcast_global_variables(root_rank)

    def begin(self) -> None:
        """Makes the op, once for each graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with on_device(self.device):
                self.bcast_op = self._broadcast(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        del coord
        session.run(self.bcast_op)


# ---- objects ----


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """`obj` of the global rank `root_rank`, on every rank of the set; what the others pass is not read. Pickled. `session`
    is accepted and not needed: it works at once also where there are graphs."""
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None,
                        process_set: ProcessSet = global_process_set) -> Callable[[Any], Any]:
    """A function of an object: broadcast_object() with these arguments."""
    del session
    return lambda obj: objects.broadcast_object(obj, root_rank, name or "broadcast_object_fn", process_set)


def allgather_object(obj: Any, session: Any = None, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every member's `obj`, by set rank. Pickled. `session` is accepted and not needed."""
    del session
    return objects.allgather_object(obj, name, process_set)
