# SPDX-License-Identifier: Apache-2.0
"""hvd: distributed training by a node service. `import hvd.torch as hvd` and go on as with Horovod.

    import hvd.numpy as hvd
    hvd.init()
    total = hvd.allreduce(gradient, op=hvd.Sum)

This module has what needs no framework; hvd.numpy, hvd.torch add the collectives on their tensors. Here they are on NumPy
arrays, imported when first used. hvd.run calls a function on several ranks.
"""
from __future__ import annotations

from typing import Any

from hvd import _native
from hvd.basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, cross_rank, cross_size, cuda_built, ddl_built,
                        gloo_built, gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size, mpi_built,
                        mpi_enabled, mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size,
                        start_timeline, stop_timeline)
from hvd.collectives import barrier, join, poll, synchronize
from hvd.exceptions import (HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt,
                            NotInitializedError)
from hvd.objects import allgather_object, broadcast_object
from hvd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

InternalError = HorovodInternalError
__version__: str = _native.quick.hvd_version().decode()

_ON_ARRAYS = frozenset(
    base + variant for base in ("allreduce", "broadcast", "grouped_allreduce") for variant in ("", "_async", "_", "_async_")
) | frozenset(
    base + variant
    for base in ("allgather", "grouped_allgather", "alltoall", "reducescatter", "grouped_reducescatter")
    for variant in ("", "_async"))


def __getattr__(name: str) -> Any:
    if name in _ON_ARRAYS:
        import hvd.numpy as on_arrays  # pylint: disable=import-outside-toplevel
        return getattr(on_arrays, name)
    if name == "run":
        from hvd.runner import run  # pylint: disable=import-outside-toplevel
        return run
    raise AttributeError(f"module 'hvd' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_ARRAYS, "run"])
