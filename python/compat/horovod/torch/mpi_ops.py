# SPDX-License-Identifier: Apache-2.0
"""The collectives: hvd.torch.mpi_ops, with Horovod's rule for process sets."""
from __future__ import annotations

from horovod.common.basics import HorovodBasics as _HorovodBasics
from horovod.common.process_sets import add_process_set, remove_process_set  # noqa: F401
from horovod.common.util import (check_installed_version, get_average_backwards_compatibility_fun,  # noqa: F401
                                 gpu_available, num_rank_is_power_2)
from hvd.torch.compression import Compression  # noqa: F401
from hvd.torch.mpi_ops import (  # noqa: F401
    Adasum, Average, HorovodInternalError, Max, Min, Product, ProcessSet, Sum, allgather, allgather_async, allreduce,
    allreduce_, allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier, broadcast, broadcast_,
    broadcast_async, broadcast_async_, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set,
    gloo_built, gloo_enabled, grouped_allgather, grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
    grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async, init,
    is_homogeneous, is_initialized, join, local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported,
    nccl_built, poll, rank, reducescatter, reducescatter_async, rocm_built, shutdown, size, sparse_allreduce_async,
    start_timeline, stop_timeline, synchronize)

_basics = _HorovodBasics(__file__, "mpi_lib_v2")
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
