# SPDX-License-Identifier: Apache-2.0
"""torch's side of the collectives: where a tensor lies, what it holds, and the way of device memory through the host."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from hvd import _native, collectives

CODES: dict[Any, int] = {getattr(torch, name): code for name, code in _native.DTYPES.items() if hasattr(torch, name)}
_describe = _native.describe
_strided = torch.strided
_logger = logging.getLogger("hvd")


def dense(tensor: Any) -> Any:
    """The tensor, or a copy of one that cannot be sent from where it is."""
    return tensor.resolve_neg().contiguous()


class Torch(collectives.Framework):
    """Dense tensors in host memory are used where they are. Others are copied to pinned host memory and back: the
    copies are ordered after what the current stream has to do, and are finished when a call returns."""

    def __init__(self) -> None:
        self._told = False

    def describe(self, tensor: Any) -> bytes:
        code = CODES.get(tensor.dtype)
        if code is None:
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        if tensor.layout is not _strided:
            raise ValueError(f"a tensor of layout {tensor.layout} is not supported; use sparse_allreduce_async for "
                             "sparse gradients, or to_dense()")
        if not tensor.is_contiguous():
            raise ValueError("Tensor is required to be contiguous.")
        if tensor.is_neg():  # its memory holds what it is the negative of
            raise ValueError("a view that negates is not supported; use tensor.resolve_neg()")
        return _describe(tensor.data_ptr(), code, tensor.shape)

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)

    def empty_host(self, shape: Sequence[int], like: Any) -> Any:
        return torch.empty(tuple(shape), dtype=like.dtype, pin_memory=like.device.type == "cuda")

    def on_host(self, tensor: Any) -> bool:
        return tensor.is_cpu

    def to_host(self, tensor: Any) -> Any:
        if tensor.device.type == "meta":
            raise ValueError("a tensor on the device 'meta' has no contents to send")
        self.describe(tensor)
        if not self._told:
            self._told = True
            _logger.warning("tensors on %s travel through pinned host memory: this build works on host memory only",
                            tensor.device)
        host = self.empty_host(tensor.shape, tensor)
        host.copy_(tensor.detach())
        return host

    def from_host(self, host: Any, tensor: Any) -> None:
        tensor.detach().copy_(host)


engine = collectives.Collectives(Torch())
