# SPDX-License-Identifier: Apache-2.0
"""The double of torch.cuda with which hvd.torch's ways of CUDA tensors are tried where there is no GPU.

What is real: the engine, its worker, the client library, and all of hvd.torch but the class Cuda of hvd/torch/_cuda.py. What is not:
the driver, which is tests/fakegpu; and torch's kernels. Tensors "on the device" are torch's CPU tensors over memory of the fake
driver, which this process may read. torch works on them at once, in no stream; so after each wait of a stream the double drains
that stream (`eager`), as if what torch does next came behind it. Only what is submitted is in the stream's order. Nothing here
says anything about torch's own streams, allocator or autograd on a GPU: tests/python/test_torch_cuda.py does, where there is one.

install() in a rank, before hvd.init(); the environment must be that of fake(BUILD).
"""
from __future__ import annotations

import ctypes
import math
import pathlib
import threading
from typing import Any

import torch

from hvd import _streams
from hvd.torch import _autograd, _cuda, _framework

_NON_BLOCKING = 1
_CHUNK, _SEGMENT = 2 << 20, 512 << 20  # as torch has them for small tensors; the addresses of a segment


def fake(build: pathlib.Path, **more: str) -> dict[str, str]:
    """Environment variables of ranks, and of the hvdd that they start, on a machine with fake GPUs."""
    return {"LD_LIBRARY_PATH": str(build / "fakegpu"), "FAKEGPU": "devices=2;free=keeps", **more}


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        made = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        self.cuda_stream = made.value

    def synchronize(self) -> None:
        """Waits for what it has to do."""
        self._driver.call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


class Event:
    """As torch.cuda.Event, recorded. The fake driver cannot be asked about events, so its stream is: that is later."""

    def __init__(self, driver: Driver, stream: Stream) -> None:
        self._driver = driver
        self._stream = stream
        self.made = ctypes.c_void_p()
        driver.call("cuEventCreate", ctypes.byref(self.made), 0)
        driver.call("cuEventRecord", self.made, ctypes.c_void_p(stream.cuda_stream))

    def query(self) -> bool:
        """Whether it has happened."""
        return self._driver.ask("cuStreamQuery", ctypes.c_void_p(self._stream.cuda_stream)) == 0

    def synchronize(self) -> None:
        """Waits until it has happened."""
        self._stream.synchronize()


class Driver:
    """libcuda of the fake."""

    def __init__(self, device: int) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        assert hasattr(self._lib, "fakegpu_api"), "this is a real driver"
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self._known = threading.local()

    def ask(self, name: str, *arguments: Any) -> int:
        """A call's CUresult, with the device's context."""
        if hasattr(self, "_known") and not hasattr(self._known, "context"):
            self._lib.cuCtxSetCurrent(self._context)
            self._known.context = True
        return getattr(self._lib, name)(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """A call that must succeed."""
        result = self.ask(name, *arguments)
        assert result == 0, f"{name}: {result}"


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location),
                ("windows", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class Segment:
    """An expandable segment of torch's allocator: addresses, and memory by chunks as it is needed."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._device = device
        self._begin = ctypes.c_uint64()
        self._mapped = self._used = 0
        driver.call("cuMemAddressReserve", ctypes.byref(self._begin), ctypes.c_size_t(_SEGMENT), ctypes.c_size_t(0), ctypes.c_uint64(0),
                    ctypes.c_uint64(0))

    def take(self, size: int) -> int:
        """The address of so many bytes more."""
        place = self._begin.value + self._used
        self._used += -(-size // 512) * 512
        while self._mapped < self._used:
            self._map(ctypes.c_uint64(self._begin.value + self._mapped))
            self._mapped += _CHUNK
        return place

    def _map(self, at: ctypes.c_uint64) -> None:
        size, chunk, here = ctypes.c_size_t(_CHUNK), ctypes.c_uint64(), _Location(1, self._device)
        self._driver.call("cuMemCreate", ctypes.byref(chunk), size, ctypes.byref(_Properties(1, 1, here)), ctypes.c_uint64(0))
        self._driver.call("cuMemMap", at, size, ctypes.c_size_t(0), chunk, ctypes.c_uint64(0))
        self._driver.call("cuMemRelease", chunk)
        self._driver.call("cuMemSetAccess", at, size, ctypes.byref(_Access(here, 3)), ctypes.c_size_t(1))


class Double(_cuda.Cuda):
    """hvd/torch/_cuda.py's calls on the fake driver."""

    def __init__(self, device: int) -> None:
        self.driver = Driver(device)
        self.device = device
        self.segment: Segment | None = None
        self.places: dict[int, int] = {}
        self.first = Stream(self.driver)
        self.threads = threading.local()
        self.used: list[tuple[Any, Stream]] = []
        self.eager = True
        self.idle: set[int] = set()
        self.observers: list[Any] = []
        self.torchs_own = True

    def plug_in(self) -> None:
        """From now on the allocator is one that torch.cuda.memory.change_current_allocator() has put in the place of torch's own."""
        self.torchs_own = False

    def check_own(self, what: str) -> None:
        """As torch refuses what only its own allocator has."""
        if not self.torchs_own:
            raise RuntimeError(f"CUDAPluggableAllocator does not yet support {what}. If you need it, please file an issue describing "
                               "your use case.")

    def observe(self, observer: Any) -> None:
        """Takes an observer of torch's allocator."""
        self.check_own("attachOutOfMemoryObserver")
        self.observers.append(observer)

    def expand(self) -> None:
        """From now on tensors lie in an expandable segment."""
        self.segment = Segment(self.driver, self.device)

    def _take(self, size: int) -> int:
        if self.segment is not None:
            return self.segment.take(size)
        place = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place.value

    def make(self, shape: Any, dtype: Any, fill: Any = None) -> Any:
        """A tensor in memory of the fake device."""
        size = max(1, math.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
        place = self._take(size)
        self.places[place] = place + size
        memory = (ctypes.c_char * size).from_address(place)
        tensor = torch.frombuffer(memory, dtype=dtype)[:math.prod(shape)].view(shape)
        return tensor if fill is None else tensor.copy_(torch.as_tensor(fill, device="cpu"))

    def holds(self, tensor: Any) -> bool:
        if tensor.layout is not torch.strided:
            return False
        address = tensor.data_ptr() or tensor.untyped_storage().data_ptr()
        return any(begin <= address < end for begin, end in self.places.items())

    def stream(self, device: Any) -> Stream:
        return getattr(self.threads, "stream", self.first)

    def handle(self, stream: Any) -> int:
        return stream.cuda_stream

    def capturing(self) -> bool:
        return False

    def event(self, stream: Any) -> Event:
        return Event(self.driver, stream)

    def follow(self, stream: Any, event: Any) -> None:
        self.driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream.cuda_stream), event.made, 0)

    def use(self, tensor: Any, stream: Any) -> None:
        self.used.append((tensor, stream))

    def empty(self, shape: Any, dtype: Any, device: Any) -> Any:
        return self.make(tuple(shape), dtype)

    def kept_segments(self) -> list[tuple[int, int]]:
        self.check_own("snapshot")
        return [(begin, end - begin) for begin, end in self.places.items() if begin not in self.idle]

    def pinned(self, shape: Any, dtype: Any) -> Any:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def install(device: int) -> Double:
    """Puts the double in the place of torch.cuda, for the rest of this process."""
    double = _cuda.cuda = Double(device)
    empty_like, plain_wait, empty = torch.empty_like, _streams.StreamOp.wait, _framework.framework.empty

    def like(tensor: Any, **more: Any) -> Any:
        return double.make(tuple(tensor.shape), more.get("dtype") or tensor.dtype) if double.holds(tensor) else (
            empty_like(tensor, **more))

    def wait(op: _streams.StreamOp) -> None:
        plain_wait(op)
        if double.eager:
            double.stream(None).synchronize()
    # Without a GPU torch has no cache to give back, and asks nobody to.
    torch.cuda.memory.is_initialized = torch._C._accelerator_isAllocatorInitialized = lambda: True
    torch._C._cuda_emptyCache = torch._C._accelerator_emptyCache = lambda: None
    torch._C._cuda_attach_out_of_memory_observer = double.observe
    torch.empty_like = _autograd._empty_like = like
    _streams.StreamOp.wait = wait  # type: ignore[method-assign]
    _framework.framework.on_host = lambda tensor: not double.holds(tensor)
    _framework.framework.empty = lambda shape, tensor: (
        double.make(tuple(shape), tensor.dtype) if double.holds(tensor) else empty(shape, tensor))
    return double
