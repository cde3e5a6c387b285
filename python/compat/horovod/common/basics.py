# SPDX-License-Identifier: Apache-2.0
"""HorovodBasics: init, shutdown, who am I, as methods of an object. Every object speaks of the one session there is."""
from __future__ import annotations

from typing import Any

from hvd import basics as _basics, process_sets as _sets
from horovod.common.process_sets import ProcessSet, global_process_set


class HorovodBasics:
    """`HorovodBasics(__file__, "mpi_lib_v2")`: what it is made of does not matter, there is one library."""

    Average, Sum, Adasum = _basics.Average, _basics.Sum, _basics.Adasum
    Min, Max, Product = _basics.Min, _basics.Max, _basics.Product

    init = staticmethod(_basics.init)
    shutdown = staticmethod(_basics.shutdown)
    is_initialized = staticmethod(_basics.is_initialized)
    start_timeline = staticmethod(_basics.start_timeline)
    stop_timeline = staticmethod(_basics.stop_timeline)
    size = staticmethod(_basics.size)
    local_size = staticmethod(_basics.local_size)
    cross_size = staticmethod(_basics.cross_size)
    rank = staticmethod(_basics.rank)
    local_rank = staticmethod(_basics.local_rank)
    cross_rank = staticmethod(_basics.cross_rank)
    is_homogeneous = staticmethod(_basics.is_homogeneous)
    mpi_threads_supported = staticmethod(_basics.mpi_threads_supported)
    mpi_enabled = staticmethod(_basics.mpi_enabled)
    mpi_built = staticmethod(_basics.mpi_built)
    gloo_enabled = staticmethod(_basics.gloo_enabled)
    gloo_built = staticmethod(_basics.gloo_built)
    nccl_built = staticmethod(_basics.nccl_built)
    ddl_built = staticmethod(_basics.ddl_built)
    ccl_built = staticmethod(_basics.ccl_built)
    cuda_built = staticmethod(_basics.cuda_built)
    rocm_built = staticmethod(_basics.rocm_built)
    _get_process_set_ids_and_ranks = staticmethod(_sets.get_process_set_ids_and_ranks)

    def __init__(self, pkg_path: str | None = None, *args: Any) -> None:
        del pkg_path, args

    @staticmethod
    def _process_set_size(process_set_id: int) -> int:
        return _sets.of_id(process_set_id).size()

    @staticmethod
    def _process_set_rank(process_set_id: int) -> int:
        return _sets.of_id(process_set_id).rank()

    def __getattr__(self, name: str) -> Any:
        if name == "MPI_LIB_CTYPES":
            raise AttributeError("HorovodBasics has no MPI_LIB_CTYPES: Horovod's C library is not here; the C interface "
                                 "is hvd.h, from Python hvd._native.lib")
        raise AttributeError(f"'HorovodBasics' object has no attribute '{name}'")


__all__ = ["HorovodBasics", "ProcessSet", "global_process_set"]
