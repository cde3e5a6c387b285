# SPDX-License-Identifier: Apache-2.0
"""Distributed training with Keras: `import hvd.keras as hvd`, with the names, arguments and errors of horovod.keras.

    import hvd.keras as hvd
    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

The package keras: 2, or 3 on TensorFlow or PyTorch (KERAS_BACKEND). Optimizers of another Keras are taken too.
"""
from __future__ import annotations

from typing import Any

import keras

from hvd._keras.api import Api
from hvd.basics import (Adasum, Average, Sum, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled,
                        is_initialized, local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported,
                        nccl_built, rank, rocm_built, shutdown, size, start_timeline, stop_timeline)
from hvd.keras import callbacks, elastic
from hvd.keras._framework import framework
from hvd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

Compression = framework.Compression
init = framework.init

_api = Api(keras, framework)
PartialDistributedOptimizer = _api.PartialDistributedOptimizer
broadcast_global_variables = _api.broadcast_global_variables
allreduce = _api.allreduce
allgather = _api.allgather
broadcast = _api.broadcast
reducescatter = _api.reducescatter
load_model = _api.load_model


def DistributedOptimizer(optimizer: Any, name: str | None = None,  # pylint: disable=invalid-name
                         device_dense: str = "", device_sparse: str = "", compression: Any = None,
                         sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0, op: int = Average,
                         num_groups: int = 0, groups: Any = None, backward_passes_per_step: int = 1,
                         average_aggregated_gradients: bool = False, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """As hvd.tensorflow.keras.DistributedOptimizer; arguments are in the order of horovod.keras', and what that does not
    have comes after them."""
    return _api.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients)
