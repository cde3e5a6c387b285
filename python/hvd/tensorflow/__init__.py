# SPDX-License-Identifier: Apache-2.0
"""Distributed training with TensorFlow: `import hvd.tensorflow as hvd`, with the names, arguments and errors of
horovod.tensorflow. Eagerly, in tf.function, and in graphs and sessions of tf.compat.v1.

    import hvd.tensorflow as hvd
    hvd.init()
    total = hvd.allreduce(tf.ones(10), op=hvd.Sum)

Optimizers of Keras: hvd.tensorflow.keras, which DistributedOptimizer here calls for them.
"""
from __future__ import annotations

import importlib
from typing import Any

from hvd.exceptions import HorovodInternalError
from hvd.tensorflow import elastic
from hvd.tensorflow._reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.functions import (BroadcastGlobalVariablesHook, allgather_object, broadcast_global_variables,
                                      broadcast_object, broadcast_object_fn, broadcast_variables)
from hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from hvd.tensorflow.mpi_ops import (Adasum, Average, Max, Min, Product, ProcessSet, Sum, add_process_set, allgather,
                                    alltoall, broadcast, broadcast_, ccl_built, cross_rank, cross_size, cuda_built,
                                    ddl_built, global_process_set, gloo_built, gloo_enabled, grouped_allgather, init,
                                    is_homogeneous, is_initialized, join, local_rank, local_rank_op, local_size,
                                    local_size_op, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built,
                                    process_set_included_op, rank, rank_op, remove_process_set, rocm_built, shutdown,
                                    size, size_op, start_timeline, stop_timeline)
from hvd.tensorflow.optimizer import DistributedOptimizer
from hvd.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

_WITH_KERAS = {"SyncBatchNormalization": "hvd.tensorflow.sync_batch_norm"}


def __getattr__(name: str) -> Any:
    """What needs Keras, which takes seconds to import, comes when it is asked for."""
    if name in _WITH_KERAS:
        return getattr(importlib.import_module(_WITH_KERAS[name]), name)
    if name == "keras":
        return importlib.import_module("hvd.tensorflow.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
