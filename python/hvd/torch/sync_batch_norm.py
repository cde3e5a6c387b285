# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks.

Each rank tells the others how many values a channel has here, their mean and variance (one allgather of float64), and
combines them by the parallel-variance formula, so that ranks may have batches of different sizes, also empty ones. The backward pass
needs the sums of the gradient and of gradient times normalised input (one allreduce).

The ops of a layer are named by the order in which layers first meet others in a forward pass; so layers of different threads may be in
flight at once. Where threads race for that first pass, set `layer.op_name` to the same text on all ranks.
"""
from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hvd.basics import Sum, size
from hvd.collectives import complete
from hvd.process_sets import global_process_set
from hvd.torch import _autograd
from hvd.torch._framework import engine, framework

_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def _across(vector: Any, tensor: Any) -> Any:
    """A value for each channel, in the shape that multiplies `tensor`."""
    return vector.view(1, -1, *[1] * (tensor.dim() - 2))


def _wide(tensor: Any) -> Any:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _gathered_statistics(tensor: Any, name: str) -> tuple[Any, Any, float]:
    """Mean and variance of each channel over all ranks, float64, and the number of values in each."""
    channels = tensor.shape[1]
    others = [dim for dim in range(tensor.dim()) if dim != 1]
    count = tensor.numel() // max(1, channels)
    own = torch.zeros((1, 2 * channels + 1), dtype=torch.float64, device=tensor.device)
    if count:
        variance, mean = torch.var_mean(_wide(tensor), others, unbiased=False)
        own[0, 0], own[0, 1:channels + 1], own[0, channels + 1:] = count, mean, variance
    # A number that the host has to know is gathered there: to ask the device for it would be to wait for the device.
    told = None if framework.on_host(tensor) else engine.start_allgather(torch.tensor([count], device="cpu"), name + ".count",
                                                                         global_process_set)
    every = _autograd.allgather(own, name + ".statistics", global_process_set)
    counts, means, variances = every[:, :1], every[:, 1:channels + 1], every[:, channels + 1:]
    total = float((counts if told is None else complete(told)).sum())
    if total <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(tensor.shape)} and "
                         "no values on the other ranks")
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean, variance, total


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, weight: Any, bias: Any, mean: Any, invstd: Any, total: float, name: str) -> Any:
        wide = _wide(tensor)
        mean, invstd = mean.to(wide.dtype), invstd.to(wide.dtype)
        ctx.save_for_backward(tensor, weight, mean, invstd)
        ctx.total, ctx.name = total, name
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return torch.addcmul(_across(shift.to(wide.dtype), wide), wide, _across(scale.to(wide.dtype), wide)).to(
            tensor.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        tensor, weight, mean, invstd = ctx.saved_tensors
        others = [dim for dim in range(tensor.dim()) if dim != 1]
        grad_wide = _wide(grad)
        normalized = (_wide(tensor) - _across(mean, tensor)) * _across(invstd, tensor)
        own = torch.stack([grad_wide.sum(others), (grad_wide * normalized).sum(others)])
        every = _autograd.allreduce(own.double(), Sum, ctx.name + ".gradient", 1.0, 1.0, global_process_set)
        means = (every / ctx.total).to(grad_wide.dtype)
        back = grad_wide - _across(means[0], tensor) - normalized * _across(means[1], tensor)
        scale = invstd if weight is None else invstd * weight
        back = (back * _across(scale.to(back.dtype), back)).to(tensor.dtype)
        to_weight = own[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        to_bias = own[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return back, to_weight, to_bias, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d/2d/3d whose training statistics are those of all ranks together. Input: (batch, num_features,
    any further dimensions), on any device. With one rank, and in eval mode, it is plain batch normalisation. The
    gradients of weight and bias are this rank's share; DistributedOptimizer brings them together."""

    op_name: str | None = None

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: Any) -> None:  # pylint: disable=redefined-builtin
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _name(self) -> str:
        if self.op_name is not None:
            return "sync_batch_norm." + self.op_name
        name = _names.get(self)
        if name is None:
            name = _names[self] = f"sync_batch_norm.{next(_numbers)}"
        return name

    def _advance(self) -> float:
        """Counts the batch; the weight of this batch in the running statistics."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.momentum is None:
            return 1.0 / float(self.num_batches_tracked or 1)
        return self.momentum

    def forward(self, input: Any) -> Any:  # pylint: disable=redefined-builtin
        """The normalised tensor, of the input's shape and type. Blocks for the other ranks when training."""
        self._check_input_dim(input)
        use_batch = self.training or self.running_mean is None
        if not self.training or size() == 1:
            momentum = self._advance() if self.training and self.track_running_stats else 0.0
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, use_batch,
                                momentum, self.eps)
        name = self._name()
        with torch.no_grad():
            mean, variance, total = _gathered_statistics(input, name)
            if self.track_running_stats and self.running_mean is not None:
                weight = self._advance()
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
                self.running_var.lerp_((variance * (total / (total - 1))).to(self.running_var.dtype), weight)
            invstd = torch.rsqrt(variance + self.eps)
        return _Normalize.apply(input, self.weight, self.bias, mean, invstd, total, name)
