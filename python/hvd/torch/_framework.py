# SPDX-License-Identifier: Apache-2.0
"""torch's side of the collectives: where a tensor lies, what it holds, and which way tensors of devices go.

    memory of the host ─► where it is                          the base class' ops
    a CUDA device      ─► where it is, in the current stream   _device.py, if a first op on that device is done
    anything else      ─► through memory of the host           _staged.py, said once with the reason

HVD_GPU=staged: no op is tried on a device. HVD_GPU=required: a device that the engine does not reach is an error.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from hvd import _native, _session, collectives
from hvd.torch import _cuda, _device, _staged

CODES: dict[Any, int] = {getattr(torch, name): code for name, code in _native.DTYPES.items() if hasattr(torch, name)}
_describe = _native.describe
_strided = torch.strided
_logger = logging.getLogger("hvd")


def dense(tensor: Any) -> Any:
    """The tensor, or a copy of one that cannot be sent from where it is."""
    return tensor.resolve_neg().contiguous()


class Torch(collectives.Framework):
    """Dense tensors."""

    def __init__(self) -> None:
        host = collectives.Collectives(self)
        self.on_device = _device.OnDevice(host)
        self.staged = _staged.Staged(host)
        self._session: _session.Session | None = None
        self._why_not: dict[Any, str] = {}  # device -> why its tensors are staged; "": they are not
        self._said: set[str] = set()
        self._told_allocator = False

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

    def on_host(self, tensor: Any) -> bool:
        return tensor.is_cpu

    def elsewhere(self, tensor: Any) -> collectives.Collectives:
        return self.on_device if self.is_reached(tensor) else self.staged

    def is_reached(self, tensor: Any) -> bool:
        """Whether the engine works on the device's memory. Asked anew in each session, by an op of this rank alone, which
        blocks. ValueError: it does not, and HVD_GPU=required."""
        session = _session.current()
        if session is not self._session:
            self._session = session
            self._why_not.clear()
            self.on_device.count_anew()
            _device.begin_session()
        device = tensor.device
        why = self._why_not.get(device)
        if why is None:
            if _cuda.cuda.holds(tensor) and _cuda.cuda.capturing():
                return True  # the op itself is refused, with a sentence
            why = self._why_not[device] = self._ask(tensor)
        return not why

    def _ask(self, tensor: Any) -> str:
        wish = os.environ.get("HVD_GPU", "")
        if not _cuda.cuda.holds(tensor):
            why = f"the engine works on memory of the host and of CUDA devices, not of {tensor.device.type}"
        elif wish == "staged":
            why = "HVD_GPU=staged"
        else:
            why = _device.trial(tensor.device, self.describe)
            if not why and not self._told_allocator:
                self._told_allocator = True
                _cuda.watch_allocator(_device.forget_idle, _device.forget_gone)
        if why and wish == "required":
            raise ValueError(f"a tensor on {tensor.device}, and HVD_GPU=required: {why}")
        if why and why not in self._said:
            self._said.add(why)
            _logger.warning("tensors on %s travel through %smemory of the host: %s", tensor.device,
                            "pinned " if _cuda.cuda.holds(tensor) else "", why)
        return why


engine = collectives.Collectives(Torch())
#: The same, as what it is.
framework: Any = engine.framework
