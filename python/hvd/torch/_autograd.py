# SPDX-License-Identifier: Apache-2.0
"""The blocking ops as autograd sees them. Each runs plainly when no gradient can be asked for, and as an
autograd.Function otherwise; backward passes use the same functions, so that gradients have gradients.

Gradients are those of Horovod: every rank's loss counts one n-th, so what other ranks did with this rank's data comes
back averaged where the forward op moved data (allgather, broadcast), and by the forward op itself elsewhere. The ops of
a named op's backward pass have its name with ".grad"; those of unnamed ones are unnamed, and ranks must reach them in the same order.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd.basics import Average, Sum
from hvd.collectives import complete
from hvd.process_sets import ProcessSet
from hvd.torch._framework import dense, engine

_grad_enabled = torch.is_grad_enabled
_empty_like = torch.empty_like


def _wants_grad(tensors: Sequence[Any]) -> bool:
    return _grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _backward_name(name: str | None) -> str | None:
    return None if name is None else name + ".grad"


def _members(process_set: ProcessSet) -> int:
    count = process_set.size()
    assert count is not None, "the forward pass has checked that the set is registered"
    return count


def int32_like(splits: Any) -> Any:
    """What makes the tensor of received splits: int32, where `splits` is if that is a tensor, else on the host."""
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"
    return lambda rows: torch.tensor(rows, dtype=torch.int32, device=device)


# ---- allreduce ----


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, *how: Any) -> Any:
        ctx.how = how
        return engine.allreduce(tensor, _empty_like(tensor), *how)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        op, name, *scales_and_set = ctx.how
        return (allreduce(dense(grad), op, _backward_name(name), *scales_and_set),) + (None,) * 5


def allreduce(tensor: Any, op: int, name: str | None, prescale: float, postscale: float,
              process_set: ProcessSet) -> Any:
    """A new tensor. Its gradient: allreduced in the same way."""
    if tensor.requires_grad and _grad_enabled():
        return _Allreduce.apply(tensor, op, name, prescale, postscale, process_set)
    return engine.allreduce(tensor, _empty_like(tensor), op, name, prescale, postscale, process_set)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: Any) -> Any:
        ctx.how = how
        return complete(engine.start_grouped_allreduce(tensors, [_empty_like(tensor) for tensor in tensors], *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, name, *scales_and_set = ctx.how
        return (None, *grouped_allreduce([dense(grad) for grad in grads], op, _backward_name(name),
                                         *scales_and_set))


def grouped_allreduce(tensors: Sequence[Any], op: int, name: str | None, prescale: float, postscale: float,
                      process_set: ProcessSet) -> Sequence[Any]:
    """New tensors. Their gradients: a group that is allreduced in the same way."""
    how = (op, name, prescale, postscale, process_set)
    if _wants_grad(tensors):
        return _GroupedAllreduce.apply(how, *tensors)
    return complete(engine.start_grouped_allreduce(tensors, [_empty_like(tensor) for tensor in tensors], *how))


# ---- allgather ----


def _own_rows(grads: Sequence[Any], rows: Sequence[int], process_set: ProcessSet) -> list[Any]:
    """Of each averaged gradient of a gathered tensor the part of this rank, which gave `rows` of it."""
    counts = complete(engine.start_allgather(torch.tensor([list(rows)], device="cpu"), None, process_set))
    place = process_set.rank()
    starts = counts[:place].sum(0).tolist()
    return [grad.narrow(0, start, count) for grad, start, count in zip(grads, starts, rows)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
        ctx.how = name, process_set
        gathered = complete(engine.start_allgather(tensor, name, process_set))
        ctx.rows = [tensor.shape[0]]
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        name, process_set = ctx.how
        grad = allreduce(dense(grad), Average, _backward_name(name), 1.0, 1.0, process_set)
        return _own_rows([grad], ctx.rows, process_set)[0], None, None


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
    """A new tensor. Its gradient: this rank's rows of the average."""
    if tensor.requires_grad and _grad_enabled():
        return _Allgather.apply(tensor, name, process_set)
    return complete(engine.start_allgather(tensor, name, process_set))


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: Any) -> Any:
        ctx.how = how
        gathered = complete(engine.start_grouped_allgather(tensors, *how))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, process_set = ctx.how
        averaged = grouped_allreduce([dense(grad) for grad in grads], Average, _backward_name(name), 1.0, 1.0,
                                     process_set)
        return (None, *_own_rows(averaged, ctx.rows, process_set))


def grouped_allgather(tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> Sequence[Any]:
    """New tensors. Their gradients: this rank's rows of the averages."""
    if _wants_grad(tensors):
        return _GroupedAllgather.apply((name, process_set), *tensors)
    return complete(engine.start_grouped_allgather(tensors, name, process_set))


# ---- broadcast ----


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.how = root_rank, name, process_set
        return engine.broadcast(tensor, _empty_like(tensor), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        root_rank, name, process_set = ctx.how
        grad = allreduce(dense(grad), Average, _backward_name(name), 1.0, 1.0, process_set)
        members = process_set.ranks or ()
        if members[process_set.rank() or 0] != root_rank:
            grad = grad * 0
        return grad, None, None, None


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """A new tensor. Its gradient: the average on the root, 0 elsewhere."""
    if tensor.requires_grad and _grad_enabled():
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return engine.broadcast(tensor, _empty_like(tensor), root_rank, name, process_set)


# ---- alltoall ----


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: str | None, make_splits: Any,
                process_set: ProcessSet) -> Any:
        rows, received = complete(engine.start_alltoall(tensor, splits, name, make_splits, process_set))
        ctx.how = name, process_set
        ctx.received = received.tolist()
        ctx.unsent = tensor.shape[0] - sum(splits) if splits is not None else 0
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, grad: Any, _grad_of_splits: Any) -> Any:
        name, process_set = ctx.how
        back, _ = alltoall(dense(grad), ctx.received, _backward_name(name), int32_like(None), process_set)
        if ctx.unsent:
            back = torch.cat([back, back.new_zeros((ctx.unsent, *back.shape[1:]))])
        return back, None, None, None, None


def alltoall(tensor: Any, splits: Sequence[int] | None, name: str | None, make_splits: Any,
             process_set: ProcessSet) -> Any:
    """(Rows received, make_splits(how many from each member)). The gradient of the rows goes back where they came
    from; rows that were not sent have a gradient of 0."""
    if tensor.requires_grad and _grad_enabled():
        return _Alltoall.apply(tensor, splits, name, make_splits, process_set)
    return complete(engine.start_alltoall(tensor, splits, name, make_splits, process_set))


# ---- reducescatter ----


def _scaled(grad: Any, op: int, prescale: float, postscale: float, process_set: ProcessSet) -> Any:
    factor = prescale * postscale * (_members(process_set) if op == Sum else 1)
    return dense(grad if factor == 1.0 else grad * factor)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, *how: Any) -> Any:
        ctx.how = how
        return complete(engine.start_reducescatter(tensor, *how))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        op, name, *scales_and_set = ctx.how
        grad = _scaled(grad, op, *scales_and_set)
        return (allgather(grad, _backward_name(name), scales_and_set[-1]),) + (None,) * 5


def reducescatter(tensor: Any, op: int, name: str | None, prescale: float, postscale: float,
                  process_set: ProcessSet) -> Any:
    """A new tensor. Its gradient: gathered; for Sum times the number of members."""
    if tensor.requires_grad and _grad_enabled():
        return _Reducescatter.apply(tensor, op, name, prescale, postscale, process_set)
    return complete(engine.start_reducescatter(tensor, op, name, prescale, postscale, process_set))


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: Any) -> Any:
        ctx.how = how
        return complete(engine.start_grouped_reducescatter(tensors, *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, name, *scales_and_set = ctx.how
        grads = tuple(_scaled(grad, op, *scales_and_set) for grad in grads)
        return (None, *grouped_allgather(grads, _backward_name(name), scales_and_set[-1]))


def grouped_reducescatter(tensors: Sequence[Any], op: int, name: str | None, prescale: float, postscale: float,
                          process_set: ProcessSet) -> Sequence[Any]:
    """New tensors. Their gradients: gathered in a group; for Sum times the number of members."""
    how = (op, name, prescale, postscale, process_set)
    if _wants_grad(tensors):
        return _GroupedReducescatter.apply(how, *tensors)
    return complete(engine.start_grouped_reducescatter(tensors, *how))
