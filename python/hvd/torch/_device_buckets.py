# SPDX-License-Identifier: Apache-2.0
"""Buckets (_buckets.py) for gradients on CUDA devices.

    OnDevice   memory of the device: gradients lie in it, and the engine reduces them there, in the current stream
    Pinned     pinned memory of the host: gradients are copied in and out in the current stream, the engine sees the host only
"""
from __future__ import annotations

from typing import Any

import torch

from hvd import _ops
from hvd._native import lib
from hvd._session import Session
from hvd.torch import _buckets, _cuda, _device


class _OfTensor(_buckets.Bucket):
    """A bucket in the memory of a tensor of bytes, for gradients on `device`."""

    def __init__(self, memory: Any, device: Any) -> None:  # pylint: disable=super-init-not-called
        self.size = memory.numel()
        self.address = memory.data_ptr()
        self.device = device
        self._bytes = memory

    def share(self, session: Session) -> None:
        """Nothing: the engine learns of it at its first op."""

    def tensor(self, offset: int, like: Any, dtype: Any) -> tuple[Any, Any]:
        placed = torch.empty(0, dtype=dtype, device=self._bytes.device)
        begin = self._bytes.storage_offset() + offset
        return placed.set_(self._bytes.untyped_storage(), begin // placed.element_size(), like.shape,
                           _buckets.dense_strides(like)), None


class OnDevice(_OfTensor):
    """Memory of the device."""

    def __init__(self, size: int, device: Any) -> None:
        memory = _cuda.cuda.empty((size,), torch.uint8, device)
        memory.zero_()
        _cuda.cuda.event(_cuda.cuda.stream(device)).synchronize()  # once: gradients may come in other streams
        super().__init__(memory, device)

    def holds_gradients_of(self, parameter: Any) -> bool:
        return True

    def allreduce(self, name: bytes, tensor: bytes, op: int, how: tuple[float, float, int],
                  session: Session | None) -> _ops.Op:
        options = _ops.options(*how, _device.handle_on(self.device))
        return _device.submit(self.device, lib.hvd_allreduce_async, self, name, tensor, tensor, op, options, session=session)


class Pinned(_OfTensor):
    """Pinned memory of the host. What a stream still reads from it is not overwritten."""

    def __init__(self, size: int, device: Any) -> None:
        memory = _cuda.cuda.pinned((size,), torch.uint8)
        memory.zero_()
        super().__init__(memory, device)
        self._read: Any = None  # the event after the last step's copies out

    def holds_gradients_of(self, parameter: Any) -> bool:
        return False

    def copy_in(self, place: Any, gradient: Any) -> None:
        if self._read is not None:
            _cuda.cuda.follow(_cuda.cuda.stream(self.device), self._read)
        place.copy_(gradient, non_blocking=True)

    def copy_out(self, gradient: Any, place: Any) -> None:
        gradient.copy_(place, non_blocking=True)

    def clear(self, place: Any) -> None:
        if self._read is not None:
            self._read.synchronize()
        place.zero_()

    def delivered(self) -> None:
        self._read = _cuda.cuda.event(_cuda.cuda.stream(self.device))


def order(device: Any, streams: list[Any]) -> None:
    """What comes in the device's current stream from now on begins after what `streams` have to do now."""
    current = _cuda.cuda.stream(device)
    for stream in streams:
        if stream != current:
            _cuda.cuda.follow(current, _cuda.cuda.event(stream))
    streams.clear()
