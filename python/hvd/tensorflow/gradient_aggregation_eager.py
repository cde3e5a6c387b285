# SPDX-License-Identifier: Apache-2.0
"""Gradients of several backward passes added up on each rank, and reduced with the last of them: eagerly and in
tf.function."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd.process_sets import ProcessSet, global_process_set
from hvd.tensorflow.gradient_aggregation import Aggregation, Reducer


class LocalGradientAggregationHelperEager(Aggregation):
    """Adds up gradients in variables of its own and reduces them in every `backward_passes_per_step`-th call.
    allreduce_func: (gradients, variables) -> reduced gradients."""

    def __init__(self, backward_passes_per_step: int, allreduce_func: Reducer, sparse_as_dense: bool,
                 average_aggregated_gradients: bool, process_set: ProcessSet = global_process_set,
                 scale_local_gradients: bool = True) -> None:
        super().__init__(backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients,
                         process_set, scale_local_gradients)
        self.counter = tf.Variable(0, trainable=False, name="aggregation_counter")
        self._sums: dict[int, Any] = {}

    def _sum_of(self, place: int, grad: Any, variable: Any) -> Any:
        if place not in self._sums:
            with tf.init_scope():
                self._sums[place] = tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False)
        return self._sums[place]

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # pylint: disable=redefined-builtin
        """For each gradient the reduced sum in every k-th call, else what was added up here so far, which is not to be
        applied. None stays None."""
        result = [self._addable(grad) for grad in grads]
        places = [place for place, grad in enumerate(result) if grad is not None]
        variables = [vars[place] for place in places]
        sums = [self._sum_of(place, result[place], vars[place]) for place in places]
        for total, place in zip(sums, places):
            total.assign_add(result[place])
        self.counter.assign_add(1)
        totals = [total.read_value() for total in sums]

        def communicate() -> list[Any]:
            reduced = self._reduce(totals, variables)
            for total in [self.counter, *sums]:
                total.assign(tf.zeros_like(total))
            return [tf.identity(grad) for grad in reduced]
        outcome = tf.cond(tf.equal(self.counter, self.backward_passes_per_step), communicate, lambda: totals)
        for place, grad in zip(places, outcome if isinstance(outcome, (list, tuple)) else [outcome]):
            result[place] = grad
        return result

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any,
                        **kwargs: Any) -> Any:
        """Calls the closure when compute_gradients() has just reduced, else advances `optimizer.iterations`, if there is
        one. A bool tensor: whether it was called."""
        del args, kwargs

        def apply() -> Any:
            apply_grads_closure()
            return tf.constant(True)

        def skip() -> Any:
            if getattr(optimizer, "iterations", None) is not None:
                optimizer.iterations.assign_add(1)
            return tf.constant(False)
        return tf.cond(tf.equal(self.counter, 0), apply, skip)
