# SPDX-License-Identifier: Apache-2.0
"""The one place where gradients are reduced: for tapes, for optimizers of TensorFlow 1, and for those of Keras.

    reduce = make_reduce("DistributedAdam", op=Average, compression=Compression.none)
    reduced = reduce(gradients, variables)

In a graph each gradient is an op of its own that starts when backward has made it; nothing orders them, the engine brings
together what is there at the same time. Eagerly, where an op is waited for before the next can begin, all of them go as
one group (two with IndexedSlices).

Where there is nothing to do (a set of one rank, or of others) gradients come back as they are. That is known when a
graph is made, so no graph holds a tf.cond for it.

An op is named by the gradient's place in the list and by its variable, without the counters that Keras appends to names:
places are the same on all ranks even where one of them has made more models than the others.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd.basics import Average, size
from hvd.process_sets import ProcessSet, global_process_set
from hvd.tensorflow._reductions import allreduce, grouped_allreduce
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.util import key_of, name_of

#: Members of a group at most: the names of so many, which begin with the group's, fit in an op (64 KiB).
_GROUP_MAX = 256


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank has anybody in the set to reduce with. ValueError: not initialized, or no registered set."""
    size()
    members = process_set.size()
    if members is None:
        raise ValueError(f"{process_set} does not exist, or has not been registered; add it by hvd.add_process_set or "
                         "hvd.init(process_sets=[...]) first")
    if not process_set.included():
        return False
    return members > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"


def check_arguments(op: int, gradient_predivide_factor: float, num_groups: int, groups: Any) -> Any:
    """What distributed tapes and optimizers do not take: ValueError. Returns what `num_groups` and `groups` mean: None,
    a number of groups, or a list of lists of variables."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    return [list(group) for group in groups]


def divided(gradient: Any, number: float) -> Any:
    """A gradient, which may be None or IndexedSlices, divided by a number."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / number, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(number, gradient.dtype)


def made_dense(gradient: Any) -> Any:
    """IndexedSlices as a tensor; anything else as it is."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def addable(gradient: Any, sparse_as_dense: bool) -> Any:
    """A gradient that can be added to those of other passes. ValueError: IndexedSlices that are not to be made dense."""
    if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
        raise ValueError("IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is "
                         "False.")
    return made_dense(gradient)


class LocalVariables:
    """Variables whose gradients are not reduced. With `scale` they are divided by the set's size, so that a step of
    theirs is of the size of the others'."""

    def __init__(self, process_set: ProcessSet, scale: bool) -> None:
        self._set, self._scale = process_set, scale
        self._variables: dict[int, Any] = {}

    def add(self, variable: Any) -> None:
        """From now on `variable` is local."""
        self._variables[key_of(variable)] = variable

    def __contains__(self, variable: Any) -> bool:
        return key_of(variable) in self._variables

    def reduce_others(self, reduce: Any, grads: Sequence[Any], variables: Sequence[Any], *arguments: Any) -> list[Any]:
        """The gradients: of local variables as `scale` says, of the others what `reduce` makes of them."""
        if not self._variables:
            return list(reduce(grads, variables, *arguments))
        pairs = list(zip(grads, variables))
        others = [pair for pair in pairs if pair[1] not in self]
        reduced = iter(reduce([grad for grad, _ in others], [variable for _, variable in others], *arguments))
        scale = self._set.size() if self._scale else 1
        return [(divided(grad, scale) if scale != 1 else grad) if variable in self else next(reduced)
                for grad, variable in pairs]


class Reduce:
    """Made by make_reduce(). Calls cost nothing that a step would notice."""

    def __init__(self, name: str, op: int, compression: Any, sparse_as_dense: bool, groups: Any, how: dict[str, Any],
                 local: LocalVariables) -> None:
        self._name = name + "_Allreduce"
        self._sparse_as_dense, self._groups = sparse_as_dense, groups
        self._how = {"op": op, "compression": compression, **how}
        self.local = local

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced any more."""
        self.local.add(variable)

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any], use_generic_names: bool = False) -> list[Any]:
        """Reduced gradients in the order given; None stays None. Eagerly this blocks until all ranks have theirs.

        use_generic_names: ops are called grad_<i>, whatever surrounds the call and whatever variables are called."""
        if len(grads) != len(variables):
            raise ValueError(f"{self._name}: {len(grads)} gradients for {len(variables)} variables")
        return self.local.reduce_others(self._reduce, grads, variables, use_generic_names)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any], generic: bool) -> list[Any]:
        reduced = [made_dense(grad) for grad in grads] if self._sparse_as_dense else list(grads)
        places = [place for place, grad in enumerate(reduced) if grad is not None]
        if not places or not takes_part(self._how["process_set"]):
            return reduced
        how = dict(self._how, ignore_name_scope=generic)
        with tf.name_scope(self._name):
            for number, group in enumerate(self._split(places, variables)):
                members = [reduced[place] for place in group]
                if len(group) == 1 and not tf.executing_eagerly():
                    name = self._member_name(group[0], variables, generic)
                    results = [allreduce(members[0], name=name, **how)]
                else:
                    name = f"grad_{number}" if generic else f"{self._name}_group_{number}"
                    results = grouped_allreduce(members, name=name, **how)
                for place, result in zip(group, results):
                    reduced[place] = result
        return reduced

    @staticmethod
    def _member_name(place: int, variables: Sequence[Any], generic: bool) -> str:
        name = "" if generic else name_of(variables[place])
        return f"grad_{place}.{name}" if name else f"grad_{place}"

    def _split(self, places: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """The places of gradients that share an op; those that are in no group of the user's have one alone, in graphs,
        or share it with all of their kind, eagerly."""
        groups: list[list[int]] = []
        rest = places
        if isinstance(self._groups, int):
            groups, rest = _in_pieces(places, self._groups), []
        elif self._groups:
            groups, rest = [[] for _ in self._groups], []
            numbers = {key_of(variable): number for number, group in enumerate(self._groups) for variable in group}
            for place in places:
                number = numbers.get(key_of(variables[place]))
                (rest if number is None else groups[number]).append(place)
        groups += [rest] if tf.executing_eagerly() else [[place] for place in rest]
        return [group[start:start + _GROUP_MAX] for group in groups for start in range(0, len(group), _GROUP_MAX)]


def _in_pieces(places: list[int], count: int) -> list[list[int]]:
    """`places` in at most `count` pieces in order, the first ones longer by one where it does not come out even."""
    count = min(count, len(places))
    length, longer = divmod(len(places), count)
    starts = [piece * length + min(piece, longer) for piece in range(count + 1)]
    return [places[start:end] for start, end in zip(starts, starts[1:])]


def make_reduce(name: str, op: int = Average, compression: Any = Compression.none, sparse_as_dense: bool = False,
                gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                process_set: ProcessSet = global_process_set, device_dense: str = "", device_sparse: str = "",
                scale_local_gradients: bool = True) -> Reduce:
    """A function of (gradients, variables) that gives the reduced gradients, in order, eagerly, in a tf.function and in
    graphs of TensorFlow 1. Gradients: tensors, IndexedSlices, None.

    name: what ops are named after, e.g. "DistributedAdam". The other arguments are those of DistributedOptimizer, checked
    here: ValueError. `result.register_local_var(variable)`: the gradient of this variable stays on its rank."""
    groups = check_arguments(op, gradient_predivide_factor, num_groups, groups)
    how = {"process_set": process_set, "device_dense": device_dense, "device_sparse": device_sparse}
    if gradient_predivide_factor != 1.0:
        how.update(prescale_factor=1.0 / gradient_predivide_factor, postscale_factor=gradient_predivide_factor)
    return Reduce(name, op, compression, sparse_as_dense, groups, how,
                  LocalVariables(process_set, scale_local_gradients))
