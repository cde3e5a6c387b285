# SPDX-License-Identifier: Apache-2.0
"""The collectives on torch tensors, under the name of Horovod's module.

Tensors are dense and contiguous, of type uint8, int8, int16, int32, int64, bool, float16, bfloat16, float32, float64,
and where torch has them uint16, float8_e4m3fn and float8_e5m2; on any device. CUDA tensors are worked on where they
lie, if hvdd has a worker for their GPU: ops take part in the current stream, and synchronize() lets the current stream wait,
not the caller; an error is then raised by a later call. What is wrong with the arguments is a ValueError at once; an op that fails under way raises HorovodInternalError.

Names pair the ops of different ranks; unnamed ops of a kind meet in the order of their calls.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd import collectives, process_sets as _sets
from hvd.basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, cross_rank, cross_size,  # noqa: F401
                        cuda_built, ddl_built, gloo_built, gloo_enabled, init, is_homogeneous, is_initialized,
                        local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rank,
                        rocm_built, shutdown, size, start_timeline, stop_timeline)
from hvd.collectives import Handle, barrier, hand_out, poll, reduce_op_of, synchronize  # noqa: F401
from hvd.exceptions import HorovodInternalError  # noqa: F401
from hvd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set  # noqa: F401
from hvd.torch import _autograd
from hvd.torch._framework import engine, framework
from hvd.torch.compression import Compression

_Tensor = torch.Tensor
_NONE = Compression.none


def _check(tensor: Any) -> None:
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"a torch.Tensor is needed here, not {type(tensor).__name__}")


def _group(tensors: Sequence[Any]) -> list[Any]:
    group = list(tensors)
    if not group:
        raise ValueError("a grouped op needs at least one tensor")
    for tensor in group:
        _check(tensor)
    if any(tensor.device != group[0].device for tensor in group):
        raise ValueError("Tensors in list must be on same device.")
    return group


def _compressed(tensors: Sequence[Any], compression: Any) -> tuple[list[Any], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [ctx for _, ctx in pairs]


def _decompressed(tensors: Sequence[Any], contexts: Sequence[Any], compression: Any) -> list[Any]:
    return [compression.decompress(tensor, ctx) for tensor, ctx in zip(tensors, contexts)]


# ---- allreduce ----


def allreduce_async(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allreduce(); synchronize() gives the new tensor. No gradient flows through it."""
    _check(tensor)
    tensor = tensor.detach()
    return hand_out(engine.start_allreduce(tensor, torch.empty_like(tensor), reduce_op_of(op, average), name,
                                           prescale_factor, postscale_factor, process_set))


def allreduce(tensor: Any, average: bool | None = None, name: str | None = None, compression: Any = _NONE,
              op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> Any:
    """A new tensor of the same shape and type: the reduction (Average by default) over the set's members. Shapes and
    types must be equal on all of them. prescale_factor multiplies each input, postscale_factor the result. Differentiable."""
    op = reduce_op_of(op, average)
    _check(tensor)
    if compression is _NONE:
        return _autograd.allreduce(tensor, op, name, prescale_factor, postscale_factor, process_set)
    small, ctx = compression.compress(tensor)
    return compression.decompress(
        _autograd.allreduce(small, op, name, prescale_factor, postscale_factor, process_set), ctx)


def allreduce_async_(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allreduce_()."""
    _check(tensor)
    return hand_out(engine.start_allreduce(tensor, tensor, reduce_op_of(op, average), name, prescale_factor,
                                           postscale_factor, process_set))


def allreduce_(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> Any:
    """allreduce() in place, unseen by autograd; returns `tensor`."""
    op = reduce_op_of(op, average)
    _check(tensor)
    return engine.allreduce(tensor, tensor, op, name, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                            op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allreduce(); synchronize() gives a tuple. No gradient flows through it."""
    group = [tensor.detach() for tensor in _group(tensors)]
    return hand_out(engine.start_grouped_allreduce(group, [torch.empty_like(tensor) for tensor in group],
                                                   reduce_op_of(op, average), name, prescale_factor,
                                                   postscale_factor, process_set))


def grouped_allreduce(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                      compression: Any = _NONE, op: int | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> list[Any]:
    """A new tensor for each input; all ops run together or none (of more than 1024: each 1024). Types and shapes may differ
    within the group. Differentiable."""
    op = reduce_op_of(op, average)
    small, contexts = _compressed(_group(tensors), compression)
    reduced = _autograd.grouped_allreduce(small, op, name, prescale_factor, postscale_factor, process_set)
    return _decompressed(reduced, contexts, compression)


def grouped_allreduce_async_(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                             op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allreduce_(); synchronize() gives a tuple."""
    group = _group(tensors)
    return hand_out(engine.start_grouped_allreduce(group, group, reduce_op_of(op, average), name, prescale_factor,
                                                   postscale_factor, process_set))


def grouped_allreduce_(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                       op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> tuple[Any, ...]:
    """grouped_allreduce() in place, unseen by autograd; returns the tensors."""
    op = reduce_op_of(op, average)
    return synchronize(grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor,
                                                process_set))


def sparse_allreduce_async(tensor: Any, name: str, op: int, process_set: ProcessSet = global_process_set) -> Any:
    """Starts the Sum or Average of sparse COO tensors. Returns a function: it waits and gives the new sparse tensor,
    not coalesced."""
    if op not in (Sum, Average):
        raise ValueError("sparse_allreduce_async does Sum and Average only")
    _check(tensor)
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async needs a tensor of layout torch.sparse_coo, not {tensor.layout}")
    tensor = tensor.detach()
    indices = allgather_async(tensor._indices().transpose(0, 1).contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values().contiguous(), f"{name}.values", process_set)

    def finish() -> Any:
        every_value = synchronize(values)
        every_index = synchronize(indices).transpose(0, 1)
        if op == Average:
            every_value = every_value / process_set.size()
        return torch.sparse_coo_tensor(every_index, every_value, tensor.size(), device=tensor.device,
                                       check_invariants=False)
    return finish


# ---- allgather ----


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allgather(). No gradient flows through it."""
    _check(tensor)
    return hand_out(engine.start_allgather(tensor.detach(), name, process_set))


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """A new tensor: the members' tensors one after the other along the first dimension, by set rank. First dimensions may
    differ, also be 0; the others and the type must be equal. Differentiable."""
    _check(tensor)
    return _autograd.allgather(tensor, name, process_set)


def grouped_allgather_async(tensors: Sequence[Any], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allgather(); synchronize() gives a tuple. No gradient flows through it."""
    group = [tensor.detach() for tensor in _group(tensors)]
    return hand_out(engine.start_grouped_allgather(group, name, process_set))


def grouped_allgather(tensors: Sequence[Any], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[Any]:
    """allgather() of each tensor; all run together or none. Differentiable."""
    return list(_autograd.grouped_allgather(_group(tensors), name, process_set))


# ---- broadcast ----


def broadcast_async(tensor: Any, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """Starts broadcast(). No gradient flows through it."""
    _check(tensor)
    tensor = tensor.detach()
    return hand_out(engine.start_broadcast(tensor, torch.empty_like(tensor), root_rank, name, process_set))


def broadcast(tensor: Any, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """A new tensor with the contents of global rank `root_rank`'s; shape and type are equal on all members.
    Differentiable."""
    _check(tensor)
    return _autograd.broadcast(tensor, root_rank, name, process_set)


def broadcast_async_(tensor: Any, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """Starts broadcast_()."""
    _check(tensor)
    return hand_out(engine.start_broadcast(tensor, tensor, root_rank, name, process_set))


def broadcast_(tensor: Any, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> Any:
    """broadcast() in place, unseen by autograd; returns `tensor`."""
    _check(tensor)
    return engine.broadcast(tensor, tensor, root_rank, name, process_set)


# ---- alltoall ----


def _splits_list(splits: Any) -> list[int] | None:
    if splits is None:
        return None
    if not isinstance(splits, _Tensor):
        splits = torch.tensor(splits, dtype=torch.int32, device="cpu")
    if splits.dim() != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if splits.numel() == 0:
        return None
    if splits.dtype is not torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    return splits.tolist()


def alltoall_async(tensor: Any, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """Starts alltoall(); synchronize() gives (rows, received splits) whatever `splits` is. No gradient flows through
    it."""
    _check(tensor)
    return hand_out(engine.start_alltoall(tensor.detach(), _splits_list(splits), name, _autograd.int32_like(splits),
                                          process_set))


def alltoall(tensor: Any, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends `splits[i]` rows (in equal parts without splits) to member i. The rows received, by set rank; with `splits`
    also an int32 tensor of how many came from each, on the device of `splits`. splits: an int32 tensor, or a list, of
    one number for each member. Differentiable."""
    _check(tensor)
    rows, received = _autograd.alltoall(tensor, _splits_list(splits), name, _autograd.int32_like(splits), process_set)
    return rows if splits is None else (rows, received)


# ---- reducescatter ----


def reducescatter_async(tensor: Any, name: str | None = None, op: int = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """Starts reducescatter(). No gradient flows through it."""
    _check(tensor)
    return hand_out(engine.start_reducescatter(tensor.detach(), op, name, prescale_factor, postscale_factor,
                                               process_set))


def reducescatter(tensor: Any, name: str | None = None, compression: Any = _NONE, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the reduction; of n members the first `dim0 % n` get one row more. Differentiable."""
    _check(tensor)
    small, ctx = compression.compress(tensor)
    return compression.decompress(
        _autograd.reducescatter(small, op, name, prescale_factor, postscale_factor, process_set), ctx)


def grouped_reducescatter_async(tensors: Sequence[Any], name: str | None = None, op: int = Average,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """Starts grouped_reducescatter(); synchronize() gives a tuple. No gradient flows through it."""
    group = [tensor.detach() for tensor in _group(tensors)]
    return hand_out(engine.start_grouped_reducescatter(group, op, name, prescale_factor, postscale_factor,
                                                       process_set))


def grouped_reducescatter(tensors: Sequence[Any], name: str | None = None, compression: Any = _NONE,
                          op: int = Average, process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> list[Any]:
    """reducescatter() of each tensor; all run together or none. Differentiable."""
    small, contexts = _compressed(_group(tensors), compression)
    reduced = _autograd.grouped_reducescatter(small, op, name, prescale_factor, postscale_factor, process_set)
    return _decompressed(reduced, contexts, compression)


# ---- no tensor ----


def join(device: int = -1) -> int:
    """This rank has no more data: it takes part in the others' ops with neutral elements until all ranks have joined.
    Blocks; the rank that joined last. `device` is accepted and has no meaning: nothing is allocated for it."""
    del device
    last = collectives.join(_sets.global_process_set)
    framework.on_device.count_anew()
    return last
