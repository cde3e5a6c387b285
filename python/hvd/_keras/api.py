# SPDX-License-Identifier: Apache-2.0
"""What users of hvd.tensorflow.keras and hvd.keras call: once, for a Keras and the framework under it."""
from __future__ import annotations

from typing import Any

from hvd._keras.files import restored
from hvd._keras.optimizer import distribute, owner_of
from hvd._keras.options import Options, groups_of
from hvd.basics import Average
from hvd.process_sets import ProcessSet, global_process_set


class Api:
    """Functions for one Keras: its package, and the module of _FRAMEWORKS for it. `compression` None is Compression.none
    everywhere."""

    def __init__(self, keras: Any, framework: Any) -> None:
        self._keras = keras
        self._framework = framework

    def DistributedOptimizer(self, optimizer: Any, name: str | None = None,  # pylint: disable=invalid-name
                             device_dense: str = "", device_sparse: str = "", compression: Any = None,
                             sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0, op: int = Average,
                             backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
                             num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
                             scale_local_gradients: bool = True) -> Any:
        """An optimizer of Keras that works on gradients reduced over the ranks of `process_set`: clipping, weight decay,
        moving averages and everything else come after the reduction.

        optimizer: any optimizer of Keras 2 or 3, a LossScaleOptimizer too. The result is of a class derived from its
            class and shares its state; use the result only. Saved models load without hvd.
        name: what the ops are named after; "Distributed<class>".
        device_dense, device_sparse: devices of TensorFlow to place the ops on.
        compression: Compression.none, .fp16 or .bf16: the type gradients travel in; or a compressor of one's own.
        sparse_as_dense: tf.IndexedSlices are reduced as dense tensors; otherwise their rows are gathered.
        gradient_predivide_factor: with Average: gradients are divided by it before the sum, and by size / factor after.
        op: Average or Sum.
        backward_passes_per_step: how many times gradients are summed up here before they are reduced and applied;
            `iterations` counts each time. average_aggregated_gradients: the sum is divided by that number.
        groups: how many groups, or a list of lists of variables: those of a group are reduced together. num_groups: its
            old name.
        scale_local_gradients: gradients of variables that its register_local_var() is told of are not reduced, and
            divided by the number of ranks.

        ValueError: bad arguments; an optimizer that is distributed already. TypeError: no optimizer of Keras."""
        return distribute(optimizer, Options(
            name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, groups_of(num_groups, groups), process_set,
            scale_local_gradients))

    def PartialDistributedOptimizer(self, optimizer: Any, name: str | None = None,  # pylint: disable=invalid-name
                                    device_dense: str = "", device_sparse: str = "", compression: Any = None,
                                    sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                                    op: int = Average, backward_passes_per_step: int = 1,
                                    average_aggregated_gradients: bool = False, groups: Any = None,
                                    process_set: ProcessSet = global_process_set, local_layers: Any = None,
                                    scale_local_gradients: bool = True) -> Any:
        """DistributedOptimizer() that leaves the gradients of `local_layers`, a built layer or several, on their rank.
        ValueError: something among them is no layer, or not built."""
        made = self.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, 0, groups, process_set, scale_local_gradients)
        several = isinstance(local_layers, (list, tuple, set))
        for layer in local_layers if several else [] if local_layers is None else [local_layers]:
            if not hasattr(layer, "trainable_weights"):
                raise ValueError(f"All local layers must be of tf.keras.layers.Layer type, not {type(layer).__name__}.")
            if not layer.built:
                raise ValueError(f"PartialDistributedOptimizer: the layer {layer.name} has no variables yet; build the "
                                 "model, or call it once, first")
            for variable in layer.trainable_weights:
                made.register_local_var(variable)
        return made

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Gives the global variables of a graph of TensorFlow 1 the values of the global rank `root_rank`'s, in Keras'
        session. RuntimeError where there are no graphs and sessions."""
        return self._framework.broadcast_global_variables(self._keras, root_rank)

    def allreduce(self, value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0, op: int | None = None, compression: Any = None) -> Any:
        """The reduction (Average by default) of anything that makes a tensor. The same shape on every rank. A tensor; an
        array where TensorFlow 1 has a session."""
        return self._framework.allreduce(self._keras, value, name, average, prescale_factor, postscale_factor, op,
                                         compression)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """The rows of all ranks' values, in the order of ranks. All dimensions but the first are the same everywhere."""
        return self._framework.allgather(self._keras, value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The value of the global rank `root_rank`. The same shape on every rank."""
        return self._framework.broadcast(self._keras, value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """This rank's rows of the reduction; of n ranks the first `dim0 % n` get one row more."""
        return self._framework.reducescatter(self._keras, value, name, op)

    def load_model(self, filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None,
                   compression: Any = None, legacy_opts: bool = False) -> Any:
        """A saved model (.keras, .h5, or what else this Keras loads) whose optimizer is distributed, and has the state it
        was saved with.

        custom_optimizers: optimizer classes of one's own. custom_objects: as of keras.models.load_model, and before
        custom_optimizers. legacy_opts: accepted and not needed, optimizers of both kinds are restored."""
        del legacy_opts
        objects = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
        objects.update(custom_objects or {})
        model = self._keras.models.load_model(filepath, custom_objects=objects)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and owner_of(optimizer) is None:
            model.optimizer = distribute(restored(self._keras, model, filepath), Options(compression=compression))
        return model
