# SPDX-License-Identifier: Apache-2.0
"""Every call of torch.cuda that the package makes for its ops: streams, events, device memory and pinned memory.

`cuda` is the one object through which they go. The tests put a double in its place (tests/python/device_double.py), since torch
without a GPU has no streams; so what stands here is as little as can be. Nothing here is called for tensors of the host.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd._streams import LEGACY


class Cuda:
    """torch.cuda for the devices of tensors. A stream is torch's Stream, an event torch's Event."""

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor lies in memory of a CUDA device."""
        return bool(tensor.is_cuda)

    def stream(self, device: Any) -> Any:
        """The stream that is current on the device, in this thread."""
        return torch.cuda.current_stream(device)

    def handle(self, stream: Any) -> int:
        """The stream for the library."""
        return stream.cuda_stream or LEGACY

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return torch.cuda.is_current_stream_capturing()

    def event(self, stream: Any) -> Any:
        """An event of what the stream has to do now: query(), synchronize()."""
        return stream.record_event()

    def follow(self, stream: Any, event: Any) -> None:
        """What comes in the stream from now on begins after the event."""
        stream.wait_event(event)

    def use(self, tensor: Any, stream: Any) -> None:
        """The tensor is used in the stream, so its memory is not handed out before what the stream has to do now is done."""
        tensor.record_stream(stream)

    def empty(self, shape: Sequence[int], dtype: Any, device: Any) -> Any:
        """A new dense tensor in memory of the device."""
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    def pinned(self, shape: Sequence[int], dtype: Any) -> Any:
        """A new dense tensor in pinned memory of the host, from and to which copies are asynchronous."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def kept_segments(self) -> list[tuple[int, int]]:
        """Address and bytes of the allocator's segments of which it gives nothing back now: those that hold tensors; of the
        expandable ones, which it unmaps by pieces, those that are full."""
        return [(segment["address"], segment["total_size"]) for segment in torch.cuda.memory_snapshot()
                if segment["active_size"] > 0
                and (not segment.get("is_expandable") or segment["active_size"] == segment["total_size"])]


cuda = Cuda()


def watch_allocator(before_giving_back: Callable[[], None], when_run_out: Callable[[], None]) -> None:
    """From now on `before_giving_back` comes first where Python lets the allocator give its cache back: torch.cuda.empty_cache(),
    torch.accelerator.empty_cache(), and who has imported them before. `when_run_out` is called when there is no memory, after the
    allocator has given back what it could. That is all that torch lets Python know of: its allocator's own observers (segments mapped,
    unmapped, freed) are C++ functions of its ABI."""
    def before(plain: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(plain)
        def give_back() -> None:
            before_giving_back()
            plain()
        return give_back
    native = torch._C  # pylint: disable=protected-access
    for name in ("_cuda_emptyCache", "_accelerator_emptyCache"):
        if hasattr(native, name):
            setattr(native, name, before(getattr(native, name)))

    def run_out(*_: Any) -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # torch raises its OutOfMemoryError next
            when_run_out()
    with contextlib.suppress(RuntimeError):  # an allocator that is not torch's own has no observers
        native._cuda_attach_out_of_memory_observer(run_out)  # pylint: disable=protected-access
