# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow: hvd.tensorflow, with Horovod's rule that process sets added after init() must be announced."""
from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.util import check_extension, gpu_available, split_list
from horovod.tensorflow import elastic
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    Adasum, Average, Max, Min, Product, ProcessSet, Sum, _allreduce, _grouped_allreduce, _grouped_reducescatter,
    _reducescatter, add_process_set, allgather, alltoall, broadcast, broadcast_, ccl_built, check_num_rank_power_of_2,
    cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built, gloo_enabled, grouped_allgather,
    handle_average_backwards_compatibility, init, is_homogeneous, is_initialized, join, local_rank, local_rank_op,
    local_size, local_size_op, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, process_set_included_op, rank,
    rank_op, remove_process_set, rocm_built, shutdown, size, size_op, start_timeline, stop_timeline)
from horovod.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs
from hvd.tensorflow import (
    BroadcastGlobalVariablesHook as _Hook, DistributedGradientTape, DistributedOptimizer, PartialDistributedGradientTape,
    allreduce, broadcast_global_variables as _broadcast_global_variables, grouped_allreduce, grouped_reducescatter,
    reducescatter)
from hvd.tensorflow._gradients import make_reduce as _make_reduce

_LegacyOptimizer = tf.compat.v1.train.Optimizer


def _make_allreduce_grads_fn(name: str, device_dense: str, device_sparse: str, compression: Any, sparse_as_dense: bool,
                             op: int, gradient_predivide_factor: float, groups: Any,
                             process_set: ProcessSet = global_process_set) -> Callable[..., list[Any]]:
    """A function of gradients, and of their variables if they are at hand, that gives the reduced gradients. Optimizers of
    other packages are built on it."""
    reduce = _make_reduce(name, op, compression, sparse_as_dense, gradient_predivide_factor, 0, groups or None, process_set,
                          device_dense, device_sparse)

    def allreduce_grads(grads: Sequence[Any], vars: Sequence[Any] | None = None) -> list[Any]:  # pylint: disable=redefined-builtin
        return reduce(grads, grads if vars is None else vars)
    return allreduce_grads


def broadcast_global_variables(root_rank: int) -> Any:
    """hvd.tensorflow.broadcast_global_variables; in a graph that has none an op that does nothing."""
    if tf.executing_eagerly() or tf.compat.v1.global_variables():
        return _broadcast_global_variables(root_rank)
    return tf.no_op()


class BroadcastGlobalVariablesHook(_Hook):
    """hvd.tensorflow's, for graphs without global variables as well."""

    _broadcast = staticmethod(broadcast_global_variables)


_LATER = {"SyncBatchNormalization": "horovod.tensorflow.sync_batch_norm"}


def __getattr__(name: str) -> Any:
    """What needs Keras, which takes seconds to import, comes when it is asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
