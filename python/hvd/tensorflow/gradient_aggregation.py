# SPDX-License-Identifier: Apache-2.0
"""Gradients of several backward passes added up on each rank, and reduced with the last of them: in graphs of
TensorFlow 1."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd.process_sets import ProcessSet, global_process_set
from hvd.tensorflow._gradients import LocalVariables, addable, divided

Reducer = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class Aggregation:
    """What both helpers have: the settings, and the reduction of what was added up."""

    def __init__(self, backward_passes_per_step: int, allreduce_func: Reducer, sparse_as_dense: bool,
                 average_aggregated_gradients: bool, process_set: ProcessSet, scale_local_gradients: bool) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self._reducer = allreduce_func
        self._local = LocalVariables(process_set, scale_local_gradients)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is added up, and not reduced."""
        self._local.add(var)

    def _addable(self, grad: Any) -> Any:
        return addable(grad, self.sparse_as_dense)

    def _reduce(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        reduced = self._local.reduce_others(self._reducer, sums, variables)
        if self.average_aggregated_gradients:
            reduced = [divided(grad, self.backward_passes_per_step) for grad in reduced]
        return reduced


class LocalGradientAggregationHelper(Aggregation):
    """Adds up gradients in local variables of the graph and reduces them in every `backward_passes_per_step`-th run.

    allreduce_func: (gradients, variables) -> reduced gradients. rank: this rank, part of the variables' names.
    optimizer_type: with _OPTIMIZER_TYPE_KERAS they are initialised in Keras' session, else by the user, with
    tf.compat.v1.local_variables_initializer(), which MonitoredTrainingSession does."""

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(self, backward_passes_per_step: int, allreduce_func: Reducer, sparse_as_dense: bool,
                 average_aggregated_gradients: bool, rank: int, optimizer_type: str,
                 process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
                 name: str = "") -> None:
        super().__init__(backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients,
                         process_set, scale_local_gradients)
        self.name, self.rank, self.optimizer_type = name, rank, optimizer_type
        self.counter: Any = None

    def _make_sums(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The counter of passes since the last reduction, and a variable for each gradient: resource variables, because
        what is read of a ref variable changes with it."""
        def local(name: str, shape: Any, dtype: Any) -> Any:
            return tf.compat.v1.get_variable(name, shape=shape, dtype=dtype, trainable=False, use_resource=True,
                                             initializer=tf.compat.v1.zeros_initializer(),
                                             collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES])
        with tf.compat.v1.variable_scope(f"aggregation_variables_{self.name}{self.rank}",
                                         reuse=tf.compat.v1.AUTO_REUSE):
            self.counter = local("aggregation_counter", (), tf.int32)
            sums = [local(str(place), variable.shape, grad.dtype)
                    for place, (grad, variable) in enumerate(zip(grads, variables))]
        if self.optimizer_type == self._OPTIMIZER_TYPE_KERAS:
            session = tf.compat.v1.keras.backend.get_session()
            session.run(tf.compat.v1.variables_initializer([self.counter, *sums]))
        return sums

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # pylint: disable=redefined-builtin
        """For each gradient the reduced sum in every k-th run, else what was added up here so far, which is not to be
        applied. None stays None."""
        result = [self._addable(grad) for grad in grads]
        places = [place for place, grad in enumerate(result) if grad is not None]
        present, variables = [result[place] for place in places], [vars[place] for place in places]
        sums = self._make_sums(present, variables)
        with tf.control_dependencies([total.assign_add(grad) for total, grad in zip(sums, present)]):
            count = tf.identity(self.counter.assign_add(1))
        with tf.control_dependencies([count]):
            totals = [total.read_value() for total in sums]

        def communicate() -> list[Any]:
            reduced = self._reduce(totals, variables)
            with tf.control_dependencies(reduced):
                cleared = [total.assign(tf.zeros_like(total)) for total in [self.counter, *sums]]
            with tf.control_dependencies(cleared):
                return [tf.identity(grad) for grad in reduced]
        outcome = tf.cond(tf.equal(count, self.backward_passes_per_step), communicate,
                          lambda: [tf.identity(total) for total in totals])
        for place, grad in zip(places, outcome if isinstance(outcome, (list, tuple)) else [outcome]):
            result[place] = grad
        return result

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any,
                        **kwargs: Any) -> Any:
        """An op that calls the closure in the runs in which compute_gradients() has reduced. In the others it advances
        `optimizer.iterations`, if there is one, and global_step, if one is given."""
        grads = [grad for grad, _ in args[0] if grad is not None]

        def apply() -> Any:
            with tf.control_dependencies([apply_grads_closure()]):
                return tf.constant(True)

        def skip() -> Any:
            steps = [step for step in (getattr(optimizer, "iterations", None), kwargs.get("global_step"))
                     if step is not None]
            with tf.control_dependencies([step.assign_add(1) for step in steps]):
                return tf.constant(False)
        with tf.control_dependencies(grads):
            return tf.group(tf.cond(tf.equal(self.counter.read_value(), 0), apply, skip))
