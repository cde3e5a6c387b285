# SPDX-License-Identifier: Apache-2.0
"""Every collective once, for all frameworks.

A framework supplies a `Framework`: how to see a tensor's memory and how to make one. Each `*_async` here submits and
returns a `Handle`, an int that `synchronize` turns into the result and `poll` asks about. What a user's call may leave
out (average, op, names) is decided here too, so that NumPy, torch and TensorFlow agree.

Thread-safe; the same name may not be in flight twice on one process set.
"""
from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any

from hvd import _native, _ops, _session
from hvd._native import Tensor, lib, quick
from hvd.basics import Adasum, Average, Sum
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet, global_process_set, id_of


class Framework:
    """What collectives need of a tensor library. Tensors that `on_host` denies go through `to_host` and `from_host`."""

    def describe(self, tensor: Any) -> Tensor:
        """Address, type and shape of a host tensor. ValueError: not dense row-major, or a type no op has."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """A new dense tensor of this shape, with the type and device of `like`."""
        raise NotImplementedError

    def on_host(self, tensor: Any) -> bool:
        """Whether the engine can work on the tensor's memory."""
        del tensor
        return True

    def to_host(self, tensor: Any) -> Any:
        """A copy in host memory, finished when this returns."""
        raise NotImplementedError

    def from_host(self, host: Any, tensor: Any) -> None:
        """Copies `host` into `tensor`, resized to its shape if need be."""
        raise NotImplementedError


class Handle(int):
    """An op in flight, or several that finish together. Belongs to this process: it cannot be pickled. Dropped before
    synchronize(), it lets the op go on and its memory go afterwards."""

    def __reduce__(self) -> Any:
        raise TypeError("a handle of an op in flight cannot be pickled or sent to another process; synchronize() it "
                        "and send the result")

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: Any) -> Handle:
        return self

    def __del__(self) -> None:
        _pending.pop(int(self), None)


#: handle -> (ops, what makes the user's result)
_pending: dict[int, tuple[Sequence[_ops.Op], Callable[[], Any]]] = {}
_numbers = itertools.count()


def _hand_out(ops: Sequence[_ops.Op], finish: Callable[[], Any]) -> Handle:
    handle = Handle(next(_numbers))
    _pending[int(handle)] = (ops, finish)
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. ValueError for a handle that is not in flight."""
    try:
        ops, _ = _pending[int(handle)]
    except KeyError:
        raise ValueError(f"handle {int(handle)} is not in flight: it was synchronized already, or hvd was shut down "
                         "meanwhile") from None
    return all(op.poll() for op in ops)


def synchronize(handle: int) -> Any:
    """Waits for an op and returns its result; the handle is used up. None for a handle that is not in flight.
    HorovodInternalError: the op failed; the text says why."""
    entry = _pending.get(int(handle))
    if entry is None:
        return None
    ops, finish = entry
    try:
        for op in ops:
            op.wait()
    except HorovodInternalError:
        _pending.pop(int(handle), None)
        raise
    _pending.pop(int(handle), None)
    return finish()


def forget_all() -> None:
    """After a shutdown: no handle is in flight any more."""
    _pending.clear()


def reduce_op_of(op: int | None, average: bool | None) -> int:
    """The reduce op that a call means by its `op` and its deprecated `average`."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is None:
        return Average
    warnings.warn("Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning,
                  stacklevel=3)
    return Average if average else Sum


def _name(kind: str, name: str | None) -> bytes | None:
    """The library's name: Horovod's `<kind>.<name>`; None: it numbers the unnamed ones itself."""
    return None if name is None else f"{kind}.{name}".encode()


class Collectives:
    """The collectives of one framework."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework

    # ---- one tensor, one output of known shape ----

    def _host_pair(self, tensor: Any, output: Any) -> tuple[Any, Any]:
        framework = self.framework
        source = tensor if framework.on_host(tensor) else framework.to_host(tensor)
        if framework.on_host(output):
            return source, output
        return source, source if output is tensor else framework.empty(tuple(output.shape), source)

    def _finish_into(self, output: Any, target: Any) -> Callable[[], Any]:
        if target is output:
            return lambda: output

        def copy_back() -> Any:
            self.framework.from_host(target, output)
            return output
        return copy_back

    def allreduce_async(self, tensor: Any, output: Any, *, op: int, name: str | None, prescale: float = 1.0,
                        postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Handle:
        """output (may be tensor) = reduction over the set."""
        return _hand_out(*self.start_allreduce(tensor, output, op, name, prescale, postscale, process_set))

    def start_allreduce(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float, postscale: float,
                        process_set: ProcessSet) -> tuple[Sequence[_ops.Op], Callable[[], Any]]:
        """allreduce_async without a handle: the ops, and what gives the result once they are finished."""
        describe = self.framework.describe
        options = _ops.options(prescale, postscale, id_of(process_set, "Allreduce"))
        source, target = self._host_pair(tensor, output)
        given = describe(source)
        wanted = given if target is source else describe(target)
        submitted = _ops.submit(lib.hvd_allreduce_async, (source, target), _name("allreduce", name), byref(given),
                                byref(wanted), op, options)
        return (submitted,), self._finish_into(output, target)

    def broadcast_async(self, tensor: Any, output: Any, root_rank: int, *, name: str | None,
                        process_set: ProcessSet = global_process_set) -> Handle:
        """output (may be tensor) = tensor of the global rank `root_rank`."""
        set_id = id_of(process_set, "Broadcast")
        if not 0 <= root_rank < _session.current().size or (set_id and root_rank not in (process_set.ranks or ())):
            raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")
        source, target = self._host_pair(tensor, output)
        given = self.framework.describe(source)
        wanted = given if target is source else self.framework.describe(target)
        op = _ops.submit(lib.hvd_broadcast_async, (source, target), _name("broadcast", name), byref(given),
                         byref(wanted), root_rank, _ops.options(1.0, 1.0, set_id))
        return _hand_out((op,), self._finish_into(output, target))

    # ---- results whose shape the engine tells ----

    def _fetch(self, op: _ops.Op, like: Any, output: Any = None) -> Any:
        """The result of an op from the library's memory, in a tensor of the framework."""
        where = op.result()
        framework = self.framework
        host_like = like if framework.on_host(like) else None
        result = framework.empty(where.shape, like if host_like is not None else framework.to_host(like))
        target = framework.describe(result)
        _copy(target.data, where.data, _bytes_of(where))
        op.release()
        if host_like is None:
            device = framework.empty(where.shape, like) if output is None else output
            framework.from_host(result, device)
            return device
        return result

    def allgather_async(self, tensor: Any, *, name: str | None,
                        process_set: ProcessSet = global_process_set) -> Handle:
        """Rows of all members, by set rank."""
        source = tensor if self.framework.on_host(tensor) else self.framework.to_host(tensor)
        op = _ops.submit(lib.hvd_allgather_async, source, _name("allgather", name), byref(self.framework.describe(source)),
                         None, _ops.options(1.0, 1.0, id_of(process_set, "Allgather")), owns_result=True)
        return _hand_out((op,), lambda: self._fetch(op, tensor))

    def reducescatter_async(self, tensor: Any, *, op: int, name: str | None, prescale: float = 1.0,
                            postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Handle:
        """This rank's rows of the reduction; the first dim0 % n members get one row more."""
        set_id = id_of(process_set, "Reducescatter")
        self._check_reducescatter(op, [tensor])
        source = tensor if self.framework.on_host(tensor) else self.framework.to_host(tensor)
        started = _ops.submit(lib.hvd_reducescatter_async, source, _name("reducescatter", name),
                              byref(self.framework.describe(source)), None, op,
                              _ops.options(prescale, postscale, set_id), owns_result=True)
        return _hand_out((started,), lambda: self._fetch(started, tensor))

    @staticmethod
    def _check_reducescatter(op: int, tensors: Sequence[Any]) -> None:
        if any(len(tensor.shape) == 0 for tensor in tensors):
            raise ValueError("Reducescatter does not support scalar inputs")
        if op == Adasum:
            raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")

    def alltoall_async(self, tensor: Any, splits: Sequence[int] | None, *, name: str | None,
                       make_splits: Callable[[list[int]], Any], process_set: ProcessSet = global_process_set) -> Handle:
        """synchronize() gives (rows received, make_splits(rows received from each member))."""
        set_id = id_of(process_set, "Alltoall")
        members = _session.current().size if set_id == 0 else len(process_set.ranks or ())
        self._check_splits(tensor, splits, members)
        source = tensor if self.framework.on_host(tensor) else self.framework.to_host(tensor)
        op = _ops.submit(lib.hvd_alltoall_async, source, _name("alltoall", name), byref(self.framework.describe(source)),
                         _ops.splits_array(splits), None, _ops.options(1.0, 1.0, set_id), owns_result=True)

        def finish() -> Any:
            received = op.received_splits(members)
            return self._fetch(op, tensor), make_splits(received)
        return _hand_out((op,), finish)

    @staticmethod
    def _check_splits(tensor: Any, splits: Sequence[int] | None, members: int) -> None:
        rows = tensor.shape[0] if len(tensor.shape) else 0
        if splits is None:
            if rows % members:
                raise ValueError("splits not provided, but first dimension of tensor is not an even multiple of the "
                                 "number of workers.")
        elif len(splits) != members:
            raise ValueError("Number of entries in splits does not equal number of workers.")
        elif sum(splits) > rows:
            raise ValueError("Sum of splits entries is greater than the first dimension of tensor.")

    # ---- groups ----

    def _sources(self, tensors: Sequence[Any]) -> list[Any]:
        framework = self.framework
        return [tensor if framework.on_host(tensor) else framework.to_host(tensor) for tensor in tensors]

    def grouped_allreduce_async(self, tensors: Sequence[Any], outputs: Sequence[Any], *, op: int, name: str | None,
                                prescale: float = 1.0, postscale: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> Handle:
        """All reductions or none; they finish together."""
        options = _ops.options(prescale, postscale, id_of(process_set, "Allreduce"))
        pairs = [self._host_pair(tensor, output) for tensor, output in zip(tensors, outputs)]
        given = _ops.tensors([self.framework.describe(source) for source, _ in pairs])
        wanted = _ops.tensors([self.framework.describe(target) for _, target in pairs])
        ops = _ops.submit(lib.hvd_grouped_allreduce_async, pairs, _name("grouped_allreduce", name), given, wanted,
                          len(pairs), op, options, count=len(pairs))
        finishes = [self._finish_into(output, target) for output, (_, target) in zip(outputs, pairs)]
        return _hand_out(ops, lambda: [finish() for finish in finishes])

    def grouped_allgather_async(self, tensors: Sequence[Any], *, name: str | None,
                                process_set: ProcessSet = global_process_set) -> Handle:
        """All gathers or none; they finish together."""
        sources = self._sources(tensors)
        given = _ops.tensors([self.framework.describe(source) for source in sources])
        ops = _ops.submit(lib.hvd_grouped_allgather_async, sources, _name("grouped_allgather", name), given, None,
                          len(sources), _ops.options(1.0, 1.0, id_of(process_set, "Allgather")), owns_result=True,
                          count=len(sources))
        return _hand_out(ops, lambda: [self._fetch(op, tensor) for op, tensor in zip(ops, tensors)])

    def grouped_reducescatter_async(self, tensors: Sequence[Any], *, op: int, name: str | None, prescale: float = 1.0,
                                    postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Handle:
        """All reductions or none; they finish together."""
        set_id = id_of(process_set, "Reducescatter")
        self._check_reducescatter(op, tensors)
        sources = self._sources(tensors)
        given = _ops.tensors([self.framework.describe(source) for source in sources])
        ops = _ops.submit(lib.hvd_grouped_reducescatter_async, sources, _name("grouped_reducescatter", name), given,
                          None, len(sources), op, _ops.options(prescale, postscale, set_id), owns_result=True,
                          count=len(sources))
        return _hand_out(ops, lambda: [self._fetch(done, tensor) for done, tensor in zip(ops, tensors)])


# ---- what needs no tensor ----


def join(process_set: ProcessSet = global_process_set) -> int:
    """This rank has no more data: it takes part in the others' ops with neutral elements until all have joined. Blocks;
    the global rank that joined last."""
    op = _ops.submit(lib.hvd_join_async, None, _ops.options(1.0, 1.0, id_of(process_set, "Join")), owns_result=True)
    op.wait()
    last = quick.hvd_op_joined_rank(op.pointer)
    op.release()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every member of the set has called it. Does not wait for other ops in flight."""
    _ops.submit(lib.hvd_barrier_async, None, None, _ops.options(1.0, 1.0, id_of(process_set, "Barrier"))).wait()


def _bytes_of(tensor: Tensor) -> int:
    bytes_of_all = _ELEMENT_BYTES[tensor.dtype]
    for extent in tensor.shape:
        bytes_of_all *= extent
    return bytes_of_all


_ELEMENT_BYTES = {code: quick.hvd_dtype_size(code) for code in _native.DTYPES.values()}


def _copy(target: int | None, source: int | None, count: int) -> None:
    """memcpy that lets other threads run."""
    if count:
        _native.copy_bytes(target, source, count)
