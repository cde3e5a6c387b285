# SPDX-License-Identifier: Apache-2.0
"""tf.GradientTape whose gradients are those of all ranks.

    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
"""
from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from hvd.basics import Average
from hvd.process_sets import ProcessSet, global_process_set
from hvd.tensorflow._gradients import Reduce, make_reduce
from hvd.tensorflow.compression import Compression


class _Distributed:
    """What stands before the class of the user's tape. The reduction is in a slot, because the `__dict__` is that of the
    user's tape, so that both are the same recording."""

    __slots__ = ("_hvd_reduce",)
    _hvd_reduce: Reduce

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is not reduced any more."""
        self._hvd_reduce.register_local_var(source)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False,
                 unconnected_gradients: Any = tf.UnconnectedGradients.NONE) -> Any:
        """tf.GradientTape.gradient(), reduced over the ranks; in the structure of `sources`. Eagerly it blocks until all
        ranks are here. use_generic_names: ops are called grad_<i>, whatever variables and name scopes are called."""
        gradients = super().gradient(target, sources, output_gradients,  # type: ignore[misc]
                                     unconnected_gradients=unconnected_gradients)
        reduced = self._hvd_reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(self, target: Any, sources: Any, output_gradients: Any = None,
                                       use_generic_names: bool = False) -> tuple[list[Any], list[Any]]:
        """gradient(), as two lists of (source, gradient): those of local sources, and those that were reduced."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients)))
        local = self._hvd_reduce.local
        return [pair for pair in pairs if pair[0] in local], [pair for pair in pairs if pair[0] not in local]


@functools.lru_cache(maxsize=None)
def _class_for(tape_class: type) -> type:
    return type(tape_class.__name__, (_Distributed, tape_class), {"__slots__": ()})


def DistributedGradientTape(gradtape: Any, device_dense: str = "", device_sparse: str = "",
                            compression: Any = Compression.none, sparse_as_dense: bool = False, op: int = Average,
                            gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                            process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True) -> Any:
    """A tape whose gradient() gives the reduction (Average by default) over the ranks of `process_set`; ranks that are not
    in it get their own gradients.

    gradtape: a tf.GradientTape, used or not; both go on recording the same.
    device_dense, device_sparse: devices to place the ops on. compression: what gradients are cast to for the way.
    sparse_as_dense: IndexedSlices are made dense first. op: Average, Sum, Adasum, Min, Max or Product.
    gradient_predivide_factor: an average divides by it before the sum, and by the rest after it.
    groups: so many groups of gradients, or lists of variables, whose gradients are reduced together; num_groups is its
        deprecated form. scale_local_gradients: gradients of local sources are divided by the set's size.
    Afterwards there are also register_local_source(variable), whose gradient is not reduced, and
    get_local_and_global_gradients(). ValueError: no tape, a tape that is distributed already, arguments that
    contradict each other."""
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"DistributedGradientTape needs a tf.GradientTape, not {type(gradtape).__name__}")
    if isinstance(gradtape, _Distributed):
        raise ValueError("DistributedGradientTape: this tape is distributed already; wrap it once, or gradients are reduced "
                         "twice")
    tape = object.__new__(_class_for(type(gradtape)))
    tape.__dict__ = gradtape.__dict__
    tape._hvd_reduce = make_reduce("DistributedGradientTape", op, compression, sparse_as_dense,
                                   gradient_predivide_factor, num_groups, groups, process_set, device_dense,
                                   device_sparse, scale_local_gradients)
    return tape


def local_variables(local_layers: Any) -> list[Any]:
    """The trainable weights of a layer or of several; none for None. ValueError: no layer, or one without weights yet."""
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights") or not hasattr(layer, "built"):
            raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
        if not layer.built:
            raise ValueError(f"the local layer {layer.name} is not built, so its variables are not known; build it, or "
                             "call the model once, before")
    return [variable for layer in layers for variable in layer.trainable_weights]


def PartialDistributedGradientTape(gradtape: Any, device_dense: str = "", device_sparse: str = "",
                                   compression: Any = Compression.none, sparse_as_dense: bool = False,
                                   op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                                   groups: Any = None, process_set: ProcessSet = global_process_set,
                                   local_layers: Any = None, scale_local_gradients: bool = True) -> Any:
    """DistributedGradientTape() that leaves the gradients of `local_layers`, a Keras layer or several, on their rank."""
    variables = local_variables(local_layers)
    tape = DistributedGradientTape(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
                                   gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients)
    for variable in variables:
        tape.register_local_source(variable)
    return tape
