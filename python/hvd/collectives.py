# SPDX-License-Identifier: Apache-2.0
"""Every collective once, for all frameworks.

A framework supplies a `Framework`: how to see a tensor's memory and how to make one. Each `start_*` here submits and
returns `Started`: the ops, and what makes the user's result once they are finished. `complete` waits and makes it;
`hand_out` gives a `Handle` instead, an int that `synchronize` turns into the result and `poll` asks about. What a user's
call may leave out (average, op, names) is decided here too, so that NumPy, torch and TensorFlow agree.

Thread-safe; the same name may not be in flight twice on one process set.
"""
from __future__ import annotations

import itertools
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hvd import _native, _ops, _session
from hvd._native import Tensor, lib, quick
from hvd.basics import Adasum, Average, Sum
from hvd.exceptions import HorovodInternalError
from hvd.process_sets import ProcessSet, global_process_set, id_of


class Framework:
    """What collectives need of a tensor library. Tensors that `on_host` denies are those of the Collectives `elsewhere`."""

    def describe(self, tensor: Any) -> bytes:
        """A tensor for the library, by _native.describe. ValueError: not dense row-major, or a type no op has."""
        raise NotImplementedError

    def address(self, tensor: Any) -> int:
        """Where a host tensor's elements begin."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """A new dense tensor of this shape, with the type and device of `like`."""
        raise NotImplementedError

    def on_host(self, tensor: Any) -> bool:
        """Whether the tensor lies in memory of the host."""
        del tensor
        return True

    def elsewhere(self, tensor: Any) -> Collectives:
        """What does the ops of a tensor that is not on the host."""
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


class Pending(Protocol):
    """An _ops.Op, to those who wait for it, or what is like one."""

    @property
    def status(self) -> int:
        """INPROGRESS until it is seen finished."""

    def poll(self) -> bool:
        """Whether it is finished. Never waits for other ranks."""

    def wait(self) -> None:
        """Waits until it is finished, or lets the device's current stream wait. HorovodInternalError: it failed."""


#: The ops of a call, and what makes its result once all of them are finished.
Started = tuple[Sequence[Pending], Callable[[], Any]]

_pending: dict[int, Started] = {}
_numbers = itertools.count()


def hand_out(started: Started) -> Handle:
    """A handle for what was started."""
    handle = Handle(next(_numbers))
    _pending[int(handle)] = started
    return handle


def complete(started: Started) -> Any:
    """Waits for what was started; its result. HorovodInternalError: an op failed; the text says why."""
    ops, finish = started
    for op in ops:
        op.wait()
    return finish()


def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. ValueError for a handle that is not in flight."""
    try:
        ops, _ = _pending[int(handle)]
    except KeyError:
        raise ValueError(f"Handle {int(handle)} was not created or has been cleared. It was synchronized already, or hvd "
                         "was shut down meanwhile") from None
    return all(op.poll() for op in ops)


def synchronize(handle: int) -> Any:
    """Waits for an op and returns its result; the handle is used up. None for a handle that is not in flight.
    HorovodInternalError: the op failed; the text says why."""
    entry = _pending.get(int(handle))
    if entry is None:
        return None
    try:
        for op in entry[0]:
            op.wait()
    except HorovodInternalError:
        _pending.pop(int(handle), None)
        raise
    _pending.pop(int(handle), None)
    return entry[1]()


def check_reduce_op(op: Any) -> None:
    """ValueError: no reduce op at all. ReduceOp of torch.distributed counts otherwise, so its SUM would be an average."""
    if not isinstance(op, (int, numbers.Integral)):
        raise ValueError(f"a reduce op is needed, such as hvd.Average or hvd.Sum, not {op!r}")


def reduce_op_of(op: int | None, average: bool | None) -> int:
    """The reduce op that a call means by its `op` and its deprecated `average`."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        check_reduce_op(op)
        return op
    if average is None:
        return Average
    warnings.warn("Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning,
                  stacklevel=3)
    return Average if average else Sum


def library_name(kind: str, name: str | None) -> bytes | None:
    """The library's name: Horovod's `<kind>.<name>`; None: it numbers the unnamed ones itself."""
    return None if name is None else f"{kind}.{name}".encode()


def group_most(name: str | None) -> int:
    """How many tensors a group of this name has at most: each member's name begins with it, and all share an area."""
    if not name:
        return _native.GROUP_MAX
    return max(1, min(_native.GROUP_MAX, _native.NAMES_BYTES // (len(name.encode()) + len("_1024of1024"))))


class Collectives:
    """The collectives of one framework."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework

    # ---- outputs of known shape ----

    def _reducing(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float, postscale: float,
                  process_set: ProcessSet) -> Any:
        """The arguments of _ops.submit and _ops.run."""
        options = _ops.options(prescale, postscale, id_of(process_set, "Allreduce"))
        describe = self.framework.describe
        given = describe(tensor)
        return (lib.hvd_allreduce_async, (tensor, output), library_name("allreduce", name), given,
                given if output is tensor else describe(output), op, options)

    def start_allreduce(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float = 1.0,
                        postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        """output (may be tensor) = reduction over the set."""
        if not self.framework.on_host(tensor):
            return self.framework.elsewhere(tensor).start_allreduce(tensor, output, op, name, prescale, postscale,
                                                                    process_set)
        started = _ops.submit(*self._reducing(tensor, output, op, name, prescale, postscale, process_set))
        return (started,), lambda: output

    def allreduce(self, tensor: Any, output: Any, op: int, name: str | None, prescale: float = 1.0,
                  postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Any:
        """start_allreduce() and complete(), made short for small tensors."""
        if not self.framework.on_host(tensor):
            return complete(self.start_allreduce(tensor, output, op, name, prescale, postscale, process_set))
        _ops.run(*self._reducing(tensor, output, op, name, prescale, postscale, process_set))
        return output

    def _broadcasting(self, tensor: Any, output: Any, root_rank: int, name: str | None,
                      process_set: ProcessSet) -> Any:
        set_id = broadcast_set(root_rank, process_set)
        describe = self.framework.describe
        given = describe(tensor)
        return (lib.hvd_broadcast_async, (tensor, output), library_name("broadcast", name), given,
                given if output is tensor else describe(output), root_rank, _ops.options(1.0, 1.0, set_id))

    def start_broadcast(self, tensor: Any, output: Any, root_rank: int, name: str | None,
                        process_set: ProcessSet = global_process_set) -> Started:
        """output (may be tensor) = tensor of the global rank `root_rank`."""
        if not self.framework.on_host(tensor):
            return self.framework.elsewhere(tensor).start_broadcast(tensor, output, root_rank, name, process_set)
        started = _ops.submit(*self._broadcasting(tensor, output, root_rank, name, process_set))
        return (started,), lambda: output

    def broadcast(self, tensor: Any, output: Any, root_rank: int, name: str | None,
                  process_set: ProcessSet = global_process_set) -> Any:
        """start_broadcast() and complete(), made short for small tensors."""
        if not self.framework.on_host(tensor):
            return complete(self.start_broadcast(tensor, output, root_rank, name, process_set))
        _ops.run(*self._broadcasting(tensor, output, root_rank, name, process_set))
        return output

    # ---- results whose shape the engine tells ----

    def _fetch(self, op: _ops.Op, like: Any) -> Any:
        """The result of an op from the library's memory, in a tensor of the framework. All but its rows is of the shape of `like`,
        which may have more dimensions than the library knows."""
        with op.held():
            where = op.result()
            shape = where.shape if len(like.shape) <= _native.DIMS_MAX else (where.shape[0], *like.shape[1:])
            result = self.framework.empty(shape, like)
            _native.copy_bytes(self.framework.address(result), where.data, _bytes_of(where))
            op.release()
        return result

    def start_allgather(self, tensor: Any, name: str | None, process_set: ProcessSet = global_process_set,
                        kind: str = "allgather") -> Started:
        """Rows of all members, by set rank. `kind`: what the library's name for it begins with."""
        if not self.framework.on_host(tensor):
            return self.framework.elsewhere(tensor).start_allgather(tensor, name, process_set, kind)
        options = _ops.options(1.0, 1.0, id_of(process_set, "Allgather"))
        op = _ops.submit(lib.hvd_allgather_async, tensor, library_name(kind, name), self.framework.describe(tensor), None,
                         options, owns_result=True)
        return (op,), lambda: self._fetch(op, tensor)

    def start_reducescatter(self, tensor: Any, op: int, name: str | None, prescale: float = 1.0,
                            postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        """This rank's rows of the reduction; the first dim0 % n members get one row more."""
        if not self.framework.on_host(tensor):
            return self.framework.elsewhere(tensor).start_reducescatter(tensor, op, name, prescale, postscale,
                                                                        process_set)
        options = _ops.options(prescale, postscale, id_of(process_set, "Reducescatter"))
        check_reducescatter(op, [tensor])
        started = _ops.submit(lib.hvd_reducescatter_async, tensor, library_name("reducescatter", name),
                              self.framework.describe(tensor), None, op, options, owns_result=True)
        return (started,), lambda: self._fetch(started, tensor)

    def start_alltoall(self, tensor: Any, splits: Sequence[int] | None, name: str | None,
                       make_splits: Callable[[list[int]], Any],
                       process_set: ProcessSet = global_process_set) -> Started:
        """The result is (rows received, make_splits(rows received from each member))."""
        if not self.framework.on_host(tensor):
            return self.framework.elsewhere(tensor).start_alltoall(tensor, splits, name, make_splits, process_set)
        set_id = id_of(process_set, "Alltoall")
        members = member_count(set_id, process_set)
        check_splits(tensor, splits, members)
        op = _ops.submit(lib.hvd_alltoall_async, tensor, library_name("alltoall", name), self.framework.describe(tensor),
                         _ops.splits_array(splits), None, _ops.options(1.0, 1.0, set_id), owns_result=True)

        def finish() -> Any:
            received = op.received_splits(members)
            return self._fetch(op, tensor), make_splits(received)
        return (op,), finish

    # ---- groups: up to GROUP_MAX ops run all or none, and finish together; results are tuples ----

    def start_grouped_allreduce(self, tensors: Sequence[Any], outputs: Sequence[Any], op: int, name: str | None,
                                prescale: float = 1.0, postscale: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> Started:
        """outputs[i] (may be tensors[i]) = reduction over the set."""
        if len(tensors) > _most(name):
            return _together([self.start_grouped_allreduce(tensors[part], outputs[part], op, part_name, prescale, postscale,
                                                           process_set) for part, part_name in _parts(tensors, name)])
        if tensors and not self.framework.on_host(tensors[0]):
            return self.framework.elsewhere(tensors[0]).start_grouped_allreduce(tensors, outputs, op, name, prescale,
                                                                                postscale, process_set)
        options = _ops.options(prescale, postscale, id_of(process_set, "Allreduce"))
        ops = _ops.submit(lib.hvd_grouped_allreduce_async, (tensors, outputs), library_name("grouped_allreduce", name),
                          self._described(tensors), self._described(outputs), len(tensors), op, options,
                          count=len(tensors))
        return ops, lambda: tuple(outputs)

    def start_grouped_allgather(self, tensors: Sequence[Any], name: str | None,
                                process_set: ProcessSet = global_process_set) -> Started:
        """Rows of all members for each tensor."""
        if len(tensors) > _most(name):
            return _together([self.start_grouped_allgather(tensors[part], part_name, process_set)
                              for part, part_name in _parts(tensors, name)])
        if tensors and not self.framework.on_host(tensors[0]):
            return self.framework.elsewhere(tensors[0]).start_grouped_allgather(tensors, name, process_set)
        options = _ops.options(1.0, 1.0, id_of(process_set, "Allgather"))
        ops = _ops.submit(lib.hvd_grouped_allgather_async, tensors, library_name("grouped_allgather", name),
                          self._described(tensors), None, len(tensors), options, owns_result=True, count=len(tensors))
        return ops, lambda: self._fetch_all(ops, tensors)

    def start_grouped_reducescatter(self, tensors: Sequence[Any], op: int, name: str | None, prescale: float = 1.0,
                                    postscale: float = 1.0, process_set: ProcessSet = global_process_set) -> Started:
        """This rank's rows of each reduction."""
        if len(tensors) > _most(name):
            return _together([self.start_grouped_reducescatter(tensors[part], op, part_name, prescale, postscale, process_set)
                              for part, part_name in _parts(tensors, name)])
        if tensors and not self.framework.on_host(tensors[0]):
            return self.framework.elsewhere(tensors[0]).start_grouped_reducescatter(tensors, op, name, prescale,
                                                                                    postscale, process_set)
        options = _ops.options(prescale, postscale, id_of(process_set, "Reducescatter"))
        check_reducescatter(op, tensors)
        ops = _ops.submit(lib.hvd_grouped_reducescatter_async, tensors, library_name("grouped_reducescatter", name),
                          self._described(tensors), None, len(tensors), op, options, owns_result=True,
                          count=len(tensors))
        return ops, lambda: self._fetch_all(ops, tensors)

    def _described(self, tensors: Sequence[Any]) -> bytes:
        return b"".join(self.framework.describe(tensor) for tensor in tensors)

    def _fetch_all(self, ops: Sequence[_ops.Op], tensors: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self._fetch(op, tensor) for op, tensor in zip(ops, tensors))


def _most(name: str | None) -> int:
    """group_most() for a group that a user calls so, of whichever kind."""
    return group_most(None if name is None else f"grouped_reducescatter.{name}")


def _parts(tensors: Sequence[Any], name: str | None) -> list[tuple[slice, str | None]]:
    """A group of more tensors than the library takes at once, as several: which tensors, and the part's name."""
    most = _most(None if name is None else f"{name}.{len(tensors)}")
    return [(slice(begin, begin + most), None if name is None else f"{name}.{begin}")
            for begin in range(0, len(tensors), most)]


def _together(parts: Sequence[Started]) -> Started:
    """The parts of a group as one."""
    return ([op for ops, _ in parts for op in ops], lambda: tuple(result for _, finish in parts for result in finish()))


# ---- what a call must be ----


def broadcast_set(root_rank: int, process_set: ProcessSet) -> int:
    """The set's number. ValueError: the root is no member."""
    set_id = id_of(process_set, "Broadcast")
    if not 0 <= root_rank < _session.current().size or (set_id and root_rank not in (process_set.ranks or ())):
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")
    return set_id


def member_count(set_id: int, process_set: ProcessSet) -> int:
    """How many ranks the set has."""
    return _session.current().size if set_id == 0 else len(process_set.ranks or ())


def check_reducescatter(op: int, tensors: Sequence[Any]) -> None:
    """ValueError or HorovodInternalError, as Horovod's users know them."""
    check_reduce_op(op)
    if any(len(tensor.shape) == 0 for tensor in tensors):
        raise ValueError("Reducescatter does not support scalar inputs")
    if op == Adasum:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")


def check_splits(tensor: Any, splits: Sequence[int] | None, members: int) -> None:
    """ValueError: splits that the tensor's rows or the set's members do not allow."""
    rows = tensor.shape[0] if len(tensor.shape) else 0
    if splits is None:
        if rows % members:
            raise ValueError("splits not provided, but first dimension of tensor is not an even multiple of the "
                             "number of workers.")
    elif len(splits) != members:
        raise ValueError("Number of entries in splits does not equal number of workers.")
    elif sum(splits) > rows:
        raise ValueError("Sum of splits entries is greater than the first dimension of tensor.")


# ---- what needs no tensor ----


def start_join(process_set: ProcessSet = global_process_set) -> Started:
    """Starts join()."""
    op = _ops.submit(lib.hvd_join_async, None, _ops.options(1.0, 1.0, id_of(process_set, "Join")), owns_result=True)
    return (op,), lambda: op.answer(quick.hvd_op_joined_rank)


def join(process_set: ProcessSet = global_process_set) -> int:
    """This rank has no more data: it takes part in the others' ops with neutral elements until all have joined. Blocks;
    the global rank that joined last."""
    return complete(start_join(process_set))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every member of the set has called it. Does not wait for other ops in flight."""
    _ops.run(lib.hvd_barrier_async, None, None, _ops.options(1.0, 1.0, id_of(process_set, "Barrier")))


def _bytes_of(tensor: Tensor) -> int:
    bytes_of_all = _ELEMENT_BYTES[tensor.dtype]
    for extent in tensor.shape:
        bytes_of_all *= extent
    return bytes_of_all


_ELEMENT_BYTES = {code: quick.hvd_dtype_size(code) for code in _native.DTYPES.values()}
