# SPDX-License-Identifier: Apache-2.0
"""The collectives of tensors that the engine does not reach, through copies in memory of the host.

Of CUDA tensors the copies lie in pinned memory. The copies of a call's inputs are made at once and waited for once; those of
results are in the order of the current stream and are not waited for.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd import _session
from hvd.collectives import Collectives, Started
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch import _cuda


def room_for(tensor: Any) -> Any:
    """Memory of the host for what the tensor holds."""
    if _cuda.cuda.holds(tensor):
        return _cuda.cuda.pinned(tensor.shape, tensor.dtype)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


class Staged(Collectives):
    """The collectives of `host`, for tensors elsewhere."""

    def __init__(self, host: Collectives) -> None:
        super().__init__(host.framework)
        self._host = host

    def copies(self, tensors: Sequence[Any]) -> list[Any]:
        """to_host() of tensors that an op can be given. ValueError: of others."""
        for tensor in tensors:
            if tensor.device.type == "meta":
                raise ValueError("a tensor on the device 'meta' has no contents to send")
            self.framework.describe(tensor)
        return self.to_host(tensors)

    @staticmethod
    def to_host(tensors: Sequence[Any]) -> list[Any]:
        """Copies of dense tensors of one device in memory of the host, finished when this returns."""
        rooms = [room_for(tensor) for tensor in tensors]
        on_cuda = _cuda.cuda.holds(tensors[0])
        for room, tensor in zip(rooms, tensors):
            room.copy_(tensor.detach(), non_blocking=on_cuda)
        if on_cuda:
            _cuda.cuda.event(_cuda.cuda.stream(tensors[0].device)).synchronize()
        return rooms

    def _back(self, host: Any, output: Any) -> Any:
        """The output, with what `host` holds."""
        output.detach().copy_(host, non_blocking=_cuda.cuda.holds(output))
        return output

    def _like(self, host: Any, tensor: Any) -> Any:
        return self._back(host, self.framework.empty(host.shape, tensor))

    def start_allreduce(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float = 1.0,
                        postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        room, = self.copies([tensor])
        ops, finish = self._host.start_allreduce(room, room, op, name, prescale, postscale, process_set)
        return ops, lambda: self._back(finish(), output)

    def start_broadcast(self, tensor: Any, output: Any, root_rank: int, name: str | None,
                        process_set: ProcessSet = global_process_set) -> Started:
        self.framework.describe(tensor)
        room = self.copies([tensor])[0] if _session.current().rank == root_rank else room_for(tensor)
        ops, finish = self._host.start_broadcast(room, room, root_rank, name, process_set)
        return ops, lambda: self._back(finish(), output)

    def start_allgather(self, tensor: Any, name: str | None, process_set: ProcessSet = global_process_set,
                        kind: str = "allgather") -> Started:
        ops, finish = self._host.start_allgather(self.copies([tensor])[0], name, process_set, kind)
        return ops, lambda: self._like(finish(), tensor)

    def start_reducescatter(self, tensor: Any, op: int, name: str | None, prescale: float = 1.0,
                            postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        ops, finish = self._host.start_reducescatter(self.copies([tensor])[0], op, name, prescale, postscale, process_set)
        return ops, lambda: self._like(finish(), tensor)

    def start_alltoall(self, tensor: Any, splits: Sequence[int] | None, name: str | None,
                       make_splits: Callable[[list[int]], Any],
                       process_set: ProcessSet = global_process_set) -> Started:
        ops, finish = self._host.start_alltoall(self.copies([tensor])[0], splits, name, make_splits, process_set)

        def result() -> Any:
            rows, received = finish()
            return self._like(rows, tensor), received
        return ops, result

    def start_grouped_allreduce(self, tensors: Sequence[Any], outputs: Sequence[Any], op: int, name: str | None,
                                prescale: float = 1.0, postscale: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> Started:
        rooms = self.copies(tensors)
        ops, finish = self._host.start_grouped_allreduce(rooms, rooms, op, name, prescale, postscale, process_set)
        return ops, lambda: tuple(self._back(host, output) for host, output in zip(finish(), outputs))

    def start_grouped_allgather(self, tensors: Sequence[Any], name: str | None,
                                process_set: ProcessSet = global_process_set) -> Started:
        return self._each(tensors, self._host.start_grouped_allgather(self.copies(tensors), name, process_set))

    def start_grouped_reducescatter(self, tensors: Sequence[Any], op: int, name: str | None, prescale: float = 1.0,
                                    postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        return self._each(tensors, self._host.start_grouped_reducescatter(self.copies(tensors), op, name, prescale,
                                                                          postscale, process_set))

    def _each(self, tensors: Sequence[Any], started: Started) -> Started:
        ops, finish = started
        return ops, lambda: tuple(self._like(host, tensor) for host, tensor in zip(finish(), tensors))
