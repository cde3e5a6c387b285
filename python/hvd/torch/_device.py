# SPDX-License-Identifier: Apache-2.0
"""The collectives of tensors on a CUDA device, where they lie: an op takes part in the device's current stream.

    start ──► the stream says when the inputs are ready ──► the engine's worker ──► synchronize(): the current stream waits

No call here waits for a device. What the library must be given, and the host does not know, is the memory of a result whose
size depends on the other ranks (allgather, alltoall). Their sizes go first, as an op on the host; the op itself is submitted
by the first call that finds the sizes known, at the latest by its synchronize(). So ranks should synchronize such ops in the
same order; where two ranks let their streams wait for two of them in opposite orders, both wait for ever.
"""
from __future__ import annotations

import bisect
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd import _native, _ops, _session, _streams, collectives
from hvd._native import lib
from hvd._streams import StreamOp
from hvd.collectives import Collectives, Started, library_name
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet, global_process_set, id_of
from hvd.torch import _cuda


def handle_on(device: Any) -> int:
    """For the library: the stream that is current on the device."""
    return _cuda.cuda.handle(_cuda.cuda.stream(device))


def submit(device: Any, function: Any, keep: Any, name: bytes | None, *arguments: Any, count: int = 0,
           session: _session.Session | None = None, owns_result: bool = False) -> Any:
    """_streams.submit() of tensors on a device, which `arguments` describe; `keep` holds them."""
    _note(keep)
    return _streams.submit(functools.partial(handle_on, device), function, keep, name, *arguments, count=count,
                           session=session, owns_result=owns_result)


def _note(kept: Any) -> None:
    """The engine may come to know the memory of these."""
    if isinstance(kept, (tuple, list)):
        for part in kept:
            _note(part)
    else:
        address = kept.address if hasattr(kept, "address") else kept.data_ptr()
        _known[address >> _PIECE_BITS] = address


class _Sized:
    """An op that is submitted when the sizes of its results are known. Like an _ops.Op to those who wait. Any thread may come to
    submit it; what goes wrong then is raised by its own wait()."""

    def __init__(self, sizes: Started, begin: Callable[[Any], Sequence[StreamOp]]) -> None:
        self._sizes, self._learn = sizes
        self._begin = begin
        self._ops: Sequence[StreamOp] | None = None  # not None: submitted, or failed
        self._error: Exception | None = None
        self._lock = threading.Lock()
        _starting.append(self)

    @property
    def status(self) -> int:
        """As an Op's: the first one that is not well counts."""
        told = [op.status for op in (*self._sizes, *(self._ops or ())) if op.status != _native.OK]
        return told[0] if told else (_native.OK if self._ops else _native.INPROGRESS)

    def go_on(self, patient: bool) -> None:
        """Submits it if the sizes are known. Never waits for other ranks; `patient`: for a thread that does the same."""
        if not self._lock.acquire(blocking=patient):  # pylint: disable=consider-using-with
            return
        try:
            if self._ops is None and all(op.poll() for op in self._sizes):
                self._ops = ()
                if self in _starting:
                    _starting.remove(self)
                if all(op.status == _native.OK for op in self._sizes):
                    self._submit()
        finally:
            self._lock.release()

    def _submit(self) -> None:
        try:
            self._ops = self._begin(self._learn())
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._error = error
        except BaseException:
            self._error = HorovodInternalError("this op was interrupted before it was submitted")
            raise

    def poll(self) -> bool:
        """Whether it is finished, on the device too."""
        go_on()
        return self._ops is not None and all(op.poll() for op in self._ops)

    def wait(self) -> None:
        """Waits for the sizes; then lets the current stream wait for the op."""
        for size in self._sizes:
            size.wait()
        self.go_on(True)
        go_on()
        if self._error is not None:
            raise self._error
        for op in self._ops or ():
            op.wait()


_starting: list[_Sized] = []


def go_on() -> None:
    """Submits the ops whose sizes have become known."""
    for op in list(_starting):
        op.go_on(False)


def begin_session() -> None:
    """What belonged to an earlier session is over; the engine knows no memory yet."""
    _starting.clear()
    _known.clear()


class OnDevice(Collectives):
    """The collectives of tensors that all lie on one device, which the engine reaches. `host`: those of the host."""

    def __init__(self, host: Collectives) -> None:
        super().__init__(host.framework)
        self._host = host
        self._numbers: dict[tuple[str, int], int] = {}

    def count_anew(self) -> None:
        """Unnamed ops whose sizes go first are numbered from 0 again: in a new session, and after a join."""
        self._numbers.clear()

    def _named(self, kind: str, name: str | None, set_id: int) -> str:
        """A name for an op that is not submitted in the order of the calls, so that the library cannot number it."""
        if name is not None:
            return name
        number = self._numbers.get((kind, set_id), 0)
        self._numbers[kind, set_id] = number + 1
        return f"device.noname.{number}"

    def _submit(self, device: Any, function: Any, keep: Any, name: bytes | None, *arguments: Any, count: int = 0) -> Any:
        go_on()
        return submit(device, function, keep, name, *arguments, count=count)

    @staticmethod
    def _handed(outputs: Sequence[Any], stream: Any) -> Sequence[Any]:
        """The outputs, for use in the current stream though the op took part in another."""
        current = _cuda.cuda.stream(outputs[0].device)
        if current != stream:
            for output in outputs:
                _cuda.cuda.use(output, current)
        return outputs

    @staticmethod
    def _joined(device: Any, prescale: float, postscale: float, set_id: int) -> tuple[Any, Any]:
        """The current stream, and options with it."""
        stream = _cuda.cuda.stream(device)
        return stream, _ops.options(prescale, postscale, set_id, _cuda.cuda.handle(stream))

    # ---- outputs of known shape ----

    def start_allreduce(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float = 1.0,
                        postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        stream, options = self._joined(tensor.device, prescale, postscale, id_of(process_set, "Allreduce"))
        describe = self.framework.describe
        started = self._submit(tensor.device, lib.hvd_allreduce_async, (tensor, output), library_name("allreduce", name),
                               describe(tensor), describe(output), op, options)
        return (started,), lambda: self._handed([output], stream)[0]

    def start_broadcast(self, tensor: Any, output: Any, root_rank: int, name: str | None,
                        process_set: ProcessSet = global_process_set) -> Started:
        set_id = collectives.broadcast_set(root_rank, process_set)
        stream, options = self._joined(tensor.device, 1.0, 1.0, set_id)
        describe = self.framework.describe
        started = self._submit(tensor.device, lib.hvd_broadcast_async, (tensor, output), library_name("broadcast", name),
                               describe(tensor), describe(output), root_rank, options)
        return (started,), lambda: self._handed([output], stream)[0]

    def start_reducescatter(self, tensor: Any, op: int, name: str | None, prescale: float = 1.0,
                            postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        set_id = id_of(process_set, "Reducescatter")
        collectives.check_reducescatter(op, [tensor])
        stream, options = self._joined(tensor.device, prescale, postscale, set_id)
        output = self._share(tensor, set_id, process_set)
        describe = self.framework.describe
        started = self._submit(tensor.device, lib.hvd_reducescatter_async, (tensor, output),
                               library_name("reducescatter", name), describe(tensor), describe(output), op, options)
        return (started,), lambda: self._handed([output], stream)[0]

    @staticmethod
    def _share(tensor: Any, set_id: int, process_set: ProcessSet) -> Any:
        """Memory for this rank's rows of a reduction."""
        members = collectives.member_count(set_id, process_set)
        rows, more = divmod(tensor.shape[0], members)
        mine = rows + ((process_set.rank() or 0) < more)
        return _cuda.cuda.empty((mine, *tensor.shape[1:]), tensor.dtype, tensor.device)

    # ---- results whose sizes the other ranks tell ----

    def start_allgather(self, tensor: Any, name: str | None, process_set: ProcessSet = global_process_set,
                        kind: str = "allgather") -> Started:
        return self._gather([tensor], name, process_set, kind, lambda results: results[0])

    def start_grouped_allgather(self, tensors: Sequence[Any], name: str | None,
                                process_set: ProcessSet = global_process_set) -> Started:
        return self._gather(tensors, name, process_set, "grouped_allgather", tuple)

    def _gather(self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet, kind: str,
                finish: Callable[[Sequence[Any]], Any]) -> Started:
        set_id = id_of(process_set, "Allgather")
        given = self._described(tensors)
        if any(tensor.dim() == 0 for tensor in tensors):
            tensors = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
            given = self._described(tensors)
        name = self._named(kind, name, set_id)
        rows = torch.tensor([[tensor.shape[0] for tensor in tensors]], device="cpu")
        sizes = self._host.start_allgather(rows, f"{name}.rows", process_set, kind)
        ready = _Ready(tensors[0].device)
        results: list[Any] = []

        def begin(every: Any) -> Sequence[StreamOp]:
            results.extend(_cuda.cuda.empty((int(total), *tensor.shape[1:]), tensor.dtype, tensor.device)
                           for total, tensor in zip(every.sum(0).tolist(), tensors))
            stream, options = self._joined(ready.device, 1.0, 1.0, set_id)
            ready.lead(stream)
            keep, key = (tensors, results), library_name(kind, name)
            wanted = self._described(results)
            if kind == "grouped_allgather":
                return self._submit(ready.device, lib.hvd_grouped_allgather_async, keep, key, given, wanted, len(tensors),
                                    options, count=len(tensors))
            return (self._submit(ready.device, lib.hvd_allgather_async, keep, key, given, wanted, options),)
        sized = _Sized(sizes, begin)
        return (sized,), lambda: finish(self._handed(results, ready.begun))

    def start_alltoall(self, tensor: Any, splits: Sequence[int] | None, name: str | None,
                       make_splits: Callable[[list[int]], Any],
                       process_set: ProcessSet = global_process_set) -> Started:
        set_id = id_of(process_set, "Alltoall")
        members = collectives.member_count(set_id, process_set)
        collectives.check_splits(tensor, splits, members)
        describe = self.framework.describe
        given = describe(tensor)
        name = self._named("alltoall", name, set_id)
        rows = splits if splits is not None else [tensor.shape[0] // members] * members
        sent = torch.tensor(rows, device="cpu").reshape(members, 1)
        sizes = self._host.start_alltoall(sent, None, f"{name}.rows", lambda came: came, process_set)
        ready = _Ready(tensor.device)
        results: list[Any] = []
        counts: list[int] = []

        def begin(told: tuple[Any, list[int]]) -> Sequence[StreamOp]:
            rows = iter(told[0].reshape(-1).tolist())
            counts.extend(next(rows) if came else 0 for came in told[1])  # none of a member that has joined
            results.append(_cuda.cuda.empty((sum(counts), *tensor.shape[1:]), tensor.dtype, tensor.device))
            stream, options = self._joined(ready.device, 1.0, 1.0, set_id)
            ready.lead(stream)
            return (self._submit(ready.device, lib.hvd_alltoall_async, (tensor, results), library_name("alltoall", name),
                                 given, _ops.splits_array(splits), describe(results[0]), options),)
        sized = _Sized(sizes, begin)
        return (sized,), lambda: (self._handed(results, ready.begun)[0],
                                  make_splits(counts))

    # ---- groups ----

    def start_grouped_allreduce(self, tensors: Sequence[Any], outputs: Sequence[Any], op: int, name: str | None,
                                prescale: float = 1.0, postscale: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> Started:
        device = tensors[0].device
        stream, options = self._joined(device, prescale, postscale, id_of(process_set, "Allreduce"))
        ops = self._submit(device, lib.hvd_grouped_allreduce_async, (tensors, outputs),
                           library_name("grouped_allreduce", name), self._described(tensors), self._described(outputs),
                           len(tensors), op, options, count=len(tensors))
        return ops, lambda: tuple(self._handed(outputs, stream))

    def start_grouped_reducescatter(self, tensors: Sequence[Any], op: int, name: str | None, prescale: float = 1.0,
                                    postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        set_id = id_of(process_set, "Reducescatter")
        collectives.check_reducescatter(op, tensors)
        device = tensors[0].device
        stream, options = self._joined(device, prescale, postscale, set_id)
        outputs = [self._share(tensor, set_id, process_set) for tensor in tensors]
        ops = self._submit(device, lib.hvd_grouped_reducescatter_async, (tensors, outputs),
                           library_name("grouped_reducescatter", name), self._described(tensors),
                           self._described(outputs), len(tensors), op, options, count=len(tensors))
        return ops, lambda: tuple(self._handed(outputs, stream))


class _Ready:
    """When the inputs of an op are ready that is submitted later, perhaps in another stream."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._given = _cuda.cuda.stream(device)
        self._event = _cuda.cuda.event(self._given)
        self.begun: Any = None  # the stream that it was submitted in

    def lead(self, stream: Any) -> None:
        """The stream in which the op is submitted now begins it when the inputs are ready."""
        self.begun = stream
        if stream != self._given:
            _cuda.cuda.follow(stream, self._event)


# ---- memory that goes back to the driver ----

#: Where tensors of ops have begun: an address for each piece of 2 MiB (the smallest segment of torch's allocator, and the smallest
#: part of an expandable one).
_known: dict[int, int] = {}
_PIECE_BITS = 21


def forget_idle() -> None:
    """Lets the engine forget the memory that the allocator may give back, or has given back by itself: what the engine has mapped is
    not free for others. What is still used by an op stays known."""
    if _session.is_open():
        go_on()
        _streams.look()
        forget_gone()


def forget_gone() -> None:
    """The same without a look at how ops have ended, so that it raises nothing of theirs."""
    if not _known or not _session.is_open():
        return
    try:
        kept = sorted(_cuda.cuda.kept_segments())
    except RuntimeError:
        return  # an allocator that is not torch's own shows no segments; a BUFFER_ID tells at an address' next use
    begins = [begin for begin, _ in kept]
    session = _session.current()
    for piece, address in list(_known.items()):
        place = bisect.bisect(begins, address) - 1
        if place >= 0 and address < sum(kept[place]):
            continue
        pointer = session.enter()
        try:
            status = lib.hvd_device_forget(pointer, address)
        finally:
            session.leave()
        if status != _native.ERR_BUSY:
            _known.pop(piece, None)


# ---- whether the engine reaches a device ----

#: How long a first op may take: the worker of the GPU is started for it.
_TRIAL_S = 60.0


def trial(device: Any, describe: Callable[[Any], bytes]) -> str:
    """Does an op on memory of the device in a set of this rank alone, so no other rank has to come. Why it was not done;
    "": it was. Blocks: the first one of a GPU starts its worker. HorovodInternalError: the session is over."""
    session = _session.current()
    try:
        return _try_in_set(device, describe, session.rank)
    except (ValueError, HorovodInternalError) as error:
        pointer = session.enter()
        try:
            if lib.hvd_session_status(pointer) != _native.OK:
                raise HorovodInternalError(_native.last_error()) from error
        finally:
            session.leave()
        return str(error)


def _try_in_set(device: Any, describe: Callable[[Any], bytes], rank: int) -> str:
    opening = _ops.submit(lib.hvd_process_set_open_async, None, (ctypes.c_int * 1)(rank), 1, 0, owns_result=True)
    opening.wait()
    number = opening.answer(_native.quick.hvd_op_process_set)
    try:
        token = _cuda.cuda.empty((1,), torch.int32, device)
        where = describe(token)
        op = submit(device, lib.hvd_allreduce_async, token, None, where, where, collectives.Sum,
                    _ops.options(1.0, 1.0, number, handle_on(device)))
        if not op.wait_for(_TRIAL_S):
            return f"the first op on {device} was not done within {_TRIAL_S:.0f} s; 'hvdctl gpus' and 'hvdctl stalls' say more"
        return ""
    finally:
        _ops.submit(lib.hvd_process_set_close_async, None, number)
