# SPDX-License-Identifier: Apache-2.0
"""horovod.keras: hvd.keras, with Horovod's rule that process sets added after init() must be announced."""
from __future__ import annotations

from horovod.common.process_sets import add_process_set, remove_process_set
from horovod.keras import callbacks, elastic
from hvd.keras import (
    Adasum, Average, Compression, DistributedOptimizer, PartialDistributedOptimizer, ProcessSet, Sum, allgather, allreduce,
    broadcast, broadcast_global_variables, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set,
    gloo_built, gloo_enabled, init, is_initialized, load_model, local_rank, local_size, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rank, reducescatter, rocm_built, shutdown, size, start_timeline, stop_timeline)
