# SPDX-License-Identifier: Apache-2.0
"""The collectives: hvd.tensorflow.mpi_ops, with Horovod's rule for process sets."""
from __future__ import annotations

from horovod.common.basics import HorovodBasics as _HorovodBasics
from horovod.common.process_sets import add_process_set, remove_process_set  # noqa: F401
from horovod.common.util import (check_installed_version, get_average_backwards_compatibility_fun,  # noqa: F401
                                 gpu_available, num_rank_is_power_2)
from hvd.tensorflow.mpi_ops import (  # noqa: F401
    Adasum, Average, HorovodInternalError, Max, Min, Product, ProcessSet, Sum, _allreduce, _grouped_allreduce,
    _grouped_reducescatter, _reducescatter, allgather, alltoall, broadcast, broadcast_, ccl_built, cross_rank, cross_size,
    cuda_built, ddl_built, global_process_set, gloo_built, gloo_enabled, grouped_allgather, init, is_homogeneous,
    is_initialized, join, local_rank, local_rank_op, local_size, local_size_op, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, process_set_included_op, rank, rank_op, rocm_built, shutdown, size, size_op,
    start_timeline, stop_timeline)

_basics = _HorovodBasics(__file__, "mpi_lib")
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
check_num_rank_power_of_2 = num_rank_is_power_2


def _check_has_gpu() -> bool:
    """Whether TensorFlow sees a GPU."""
    return gpu_available("tensorflow")
