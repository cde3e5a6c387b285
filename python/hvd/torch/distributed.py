# SPDX-License-Identifier: Apache-2.0
"""The backend "hvd" of torch.distributed: known to torch once this module (or hvd.torch) is imported.

    import hvd.torch
    torch.distributed.init_process_group("hvd")                  # or "cpu:hvd,cuda:hvd": tensors of the host and of CUDA devices
    torch.distributed.init_process_group("cpu:hvd,cuda:nccl")    # beside other backends, from PyTorch 2.15 on

    hvd alone             ProcessGroupHvd   the whole group: torch takes a Python group for it, and its works are ours
    beside other backends BackendHvd        a backend in torch's own group, whose other devices we have no part in

Ops on CUDA tensors take part in the current stream, and wait() lets it wait, as NCCL's do; except all_to_all, gather, scatter and
recv from any source, whose wait() blocks until the op is done. Devices that the engine does not reach go through the host.

The default group is the process' session: it is opened with the rank and size that torch gives unless hvd.init() has done
so, and all its collectives are those of hvd. Another group is a process set that its members open by themselves.

Ops may be given non-contiguous tensors (they are copied) and any element type that only has to be moved; reductions know
the types of hvd and complex numbers (SUM, AVG, PREMUL_SUM), integers know BAND, BOR and BXOR too; SUM of bool is "any" and
PRODUCT is "all", as with gloo and NCCL. all_reduce sums sparse COO tensors too. Shapes need not be equal, numbers of elements
must. Every failure is a DistributedError, a RuntimeError, whose text names ranks and reasons.
"""
from __future__ import annotations

import collections
import ctypes
import inspect
import itertools
import os
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, reduce as fold
from typing import Any, Optional

import torch
import torch.distributed as dist

from hvd import _native, _ops, _session, basics
from hvd._native import describe, lib, quick
from hvd.torch import _device, _sparse
from hvd.torch._framework import CODES, framework
from hvd.torch._untraced import untraced
from hvd.torch._work import DistributedError, Work

__all__ = ["BackendHvd", "DistributedError", "ProcessGroupHvd"]

#: torch's reductions -> the library's.
_REDUCTIONS = {"SUM": basics.Sum, "AVG": basics.Average, "MIN": basics.Min, "MAX": basics.Max,
               "PRODUCT": basics.Product, "PREMUL_SUM": basics.Sum}
#: Of bool, as with gloo and NCCL: whether any, and whether all.
_OF_BOOL = {"SUM": basics.Max, "PRODUCT": basics.Min}
_BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
#: Element types that are reduced as others: (the other, the ops for which that is right).
_LINEAR = frozenset(("SUM", "AVG", "PREMUL_SUM"))
_DISGUISES: dict[Any, tuple[Any, frozenset[str]]] = {
    torch.complex64: (torch.float32, _LINEAR), torch.complex128: (torch.float64, _LINEAR),
    **{getattr(torch, name): (other, frozenset(("SUM", "PRODUCT")))
       for name, other in (("uint32", torch.int32), ("uint64", torch.int64)) if hasattr(torch, name)}}
_BYTES = _native.DTYPES["uint8"]
_ANY_RANK = -1
_BARRIER_TAG = 0x7fffffff  # of monitored_barrier's messages
_LEAST = timedelta(milliseconds=1)  # that a wait takes: none is the group's timeout
_LEAVING_S = 5.0
#: A store outlives the default group, so each of a process' jobs has a key of its own: every rank has made as many.
_job_numbers = itertools.count()
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
#: Of a Work that Python hands to it C++ may keep the C++ part alone, which waits for ever once the Python part is gone. So the last
#: ones stay: before PyTorch 2.15 of all, now of those of one number, with which DDP's join() counts the ranks that go on.
_KEPT = 8
_NOT_BEFORE_BARRIERS = ("send", "recv", "barrier")  # of a message the other side may come after the barrier
_KEEPS_ALL = _VERSION < (2, 15)
_c10d: Any = torch._C._distributed_c10d  # pylint: disable=protected-access
#: torch's backends, in which a group of several has its parts. Classes of Python may derive from it since 2.15.
_TorchBackend: Any = _c10d.Backend if _VERSION >= (2, 15) else object


_Part = tuple[_ops.Op, Optional[Callable[[], None]]]  # of a work: an op, and what is done at its end


def _check(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError(f"the process group hvd needs dense tensors, and this one has the layout {tensor.layout}")


def _is_dense(tensor: Any) -> bool:
    """Whether the engine can work on it: contiguous, no conjugate or negative view, and where the engine reaches."""
    return bool(tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj() and _is_reached(tensor))


def _is_reached(tensor: Any) -> bool:
    return framework.on_host(tensor) or framework.is_reached(tensor)


def _dense(tensor: Any) -> Any:
    """The tensor, or a copy of what cannot be taken where it lies."""
    if _is_dense(tensor):
        return tensor
    whole = tensor.resolve_neg().resolve_conj().contiguous()
    return whole if _is_reached(whole) else framework.staged.to_host([whole])[0]


def _empty(shape: Any, like: Any, dtype: Any = None) -> Any:
    """New memory where the engine works on `like`: there, or on the host."""
    place = like.device if _is_reached(like) else "cpu"
    return torch.empty(shape, dtype=dtype or like.dtype, device=place)


def _room(tensor: Any) -> Any:
    """The tensor itself, or contiguous memory of its size whose contents are copied to it at the end."""
    return tensor if _is_dense(tensor) else _empty(tensor.shape, tensor)


def _copy_back(pairs: Sequence[tuple[Any, Any]]) -> Callable[[], None] | None:
    """What copies each second tensor into the first, where they are two; None: nothing to do."""
    differing = [(tensor, room) for tensor, room in pairs if tensor is not room]
    if not differing:
        return None

    def copy() -> None:
        for tensor, room in differing:
            tensor.detach().copy_(room.view(tensor.shape))
    return copy


def _bytes_code(tensor: Any) -> tuple[int, int]:
    """As which type an element travels, and as how many of them."""
    code = CODES.get(tensor.dtype)
    return (_BYTES, tensor.element_size()) if code is None else (code, 1)


def _moved(tensor: Any) -> bytes:
    """A struct hvd_tensor of one dimension for ops that only move."""
    code, each = _bytes_code(tensor)
    return describe(tensor.data_ptr(), code, (tensor.numel() * each,))


def _fetched(op: _ops.Op, like: Any) -> Any:
    """A finished op's result of one dimension, from the library's memory."""
    with op.held():
        where = op.result()
        _, each = _bytes_code(like)
        result = torch.empty(where.shape[0] // each, dtype=like.dtype, device="cpu")
        _native.copy_bytes(result.data_ptr(), where.data, result.numel() * result.element_size())
    return result


def _name_of(op: Any) -> tuple[str, Any]:
    """The reduction's name and PREMUL_SUM's factor."""
    kind, factor = op.__getstate__() if hasattr(op, "__getstate__") else (op, None)
    return kind.name, factor


class _Reduction:
    """torch's ReduceOp for tensors of one type: the library's op, prescale factor, and type code."""

    def __init__(self, op: Any, dtype: Any) -> None:
        name, factor = _name_of(op)
        self.name = name
        self.code = CODES.get(dtype)
        self.each = 1
        self.prescale = 1.0 if factor is None or name != "PREMUL_SUM" else float(factor)
        self.bitwise = _BITWISE.get(name)
        if self.bitwise is not None:
            if dtype.is_floating_point or dtype.is_complex:
                raise ValueError(f"ReduceOp.{name} needs integers or bool, not {dtype}")
            return
        if name not in _REDUCTIONS:
            raise ValueError(f"ReduceOp.{name} is not known to the process group hvd")
        self.op = _OF_BOOL.get(name, _REDUCTIONS[name]) if dtype is torch.bool else _REDUCTIONS[name]
        other, allowed = _DISGUISES.get(dtype, (None, frozenset()))
        if name in allowed:
            self.code = CODES[other]
            self.each = 2 if dtype.is_complex else 1
        elif self.code is None:
            raise ValueError(f"ReduceOp.{name} of {dtype} is not supported by the process group hvd")

    def describe(self, tensor: Any, rows: int = 0) -> bytes:
        """A struct hvd_tensor of one dimension, or of `rows` equal rows."""
        count = tensor.numel() * self.each
        assert self.code is not None
        return describe(tensor.data_ptr(), self.code, (rows, count // rows) if rows else (count,))


@untraced
class _Group:
    """The collectives of a group over hvd, for a class of torch's. `ranks`: the members' global ranks."""

    supports_splitting = True
    supports_coalescing = False

    def __init__(self, rank: int, size: int, ranks: Sequence[int], timeout: timedelta, opening: _ops.Op | None,
                 owns_session: bool = False) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # of torch's class
        self._rank, self._size = rank, size
        self._ranks = list(ranks)
        self._seconds = timeout.total_seconds()
        self._session: _session.Session | None = _session.current()
        self._opening = opening
        self._numbering = threading.Lock()
        self._owns_session = owns_session
        self._set: int | None = 0 if opening is None else None
        self._collected: list[Work] | None = None
        self._kept: collections.deque[Work] = collections.deque()
        self._sequence = 0
        self._under_way: dict[int, Work] = {}  # collectives that no wait has seen finished, by id()
        self._look_at = _KEPT  # when so many are, the group looks which are over

    # ---- the process set ----

    def _number(self) -> int:
        if self._session is None:
            raise DistributedError("this process group was destroyed")
        if self._set is None:
            with self._numbering:  # several threads may have the first op
                if self._set is None:
                    self._set = self._opened()
        return self._set

    def _member(self, what: str, place: int) -> int:
        """A member's group rank, as the caller gives it. torch looks at those of the default group not at all."""
        if not 0 <= place < self._size:
            raise ValueError(f"{what}: there is no rank {place} in a process group of {self._size}")
        return place

    def _start(self, function: Any, keep: Any, *arguments: Any, prescale: float = 1.0, count: int = 0,
               owns_result: bool = False) -> Any:
        """_ops.submit, or _device.submit where the (first) tensor of `keep` lies on a device."""
        first = keep
        while isinstance(first, (tuple, list)):
            first = first[0]
        if framework.on_host(first):
            return _ops.submit(function, keep, *arguments, _ops.options(prescale, 1.0, self._number()), count=count,
                               owns_result=owns_result)
        options = _ops.options(prescale, 1.0, self._number(), _device.handle_on(first.device))
        return _device.submit(first.device, function, keep, *arguments, options, count=count, owns_result=owns_result)

    def _opened(self) -> int:
        opening = self._opening
        assert opening is not None
        if not opening.wait_for(self._seconds):
            raise DistributedError(f"new_group({self._ranks}): not all of these ranks have called it within "
                                   f"{self._seconds:g} s")
        return opening.answer(quick.hvd_op_process_set)

    def shutdown(self) -> None:
        """Gives the process set back; of the default group: closes the session if the group has opened it, when the
        other ranks do so, at the latest after 5 s, or at once while an exception is on its way: then they may wait for
        this rank. What is in flight fails. May be repeated."""
        self._end(sys.exc_info()[0] is None)

    def _end(self, patient: bool) -> None:
        session, self._session = self._session, None
        self._under_way.clear()
        if session is None or session.pointer is None:
            return
        if self._set == 0:
            if self._owns_session:
                if patient:
                    self._await_others()
                basics.shutdown()
        elif self._set is not None or (self._opening is not None and self._opening.poll()):
            self._close_set()

    def _await_others(self) -> None:
        """A rank that leaves ends the job, but ranks of other groups may not be done yet."""
        try:
            op = _ops.submit(lib.hvd_barrier_async, "torch.destroy_process_group", None, _ops.options(1.0, 1.0, 0))
            op.wait_for(min(self._seconds, _LEAVING_S))
        except (RuntimeError, ValueError):
            pass  # somebody has left, or is lost

    def _close_set(self) -> None:
        try:
            number = self._set if self._set is not None else self._opening.answer(quick.hvd_op_process_set)
            _ops.submit(lib.hvd_process_set_close_async, None, number)  # nobody waits for it
        except (RuntimeError, ValueError):
            pass  # the session is over, or a rank of the job: then so is the set

    def abort(self) -> None:
        """shutdown(), at once."""
        self._end(False)

    def __del__(self) -> None:
        try:
            self._end(False)
        except Exception:  # pylint: disable=broad-exception-caught
            pass  # the interpreter ends

    # ---- what torch asks ----

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """ "hvd"."""
        return "hvd"

    _get_backend_name = name = getBackendName

    # What torch asks of backends that split, for a group with a device of its own: here nothing has to be done before.
    def eager_connect_single_device(self, device: Any) -> None:
        """Nothing."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Nothing: other ranks make a group without this one."""

    def set_timeout(self, timeout: timedelta) -> None:
        """For the waits that begin from now on."""
        self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def start_coalescing(self) -> None:
        """The works from now on are one work at the end."""
        self._collected = []

    def end_coalescing(self) -> Work:
        """Of the works since start_coalescing()."""
        works, self._collected = self._collected or [], None
        whole = Work("coalesced", [op for work in works for op in work.ops],
                     [tensor for work in works for tensor in work.outputs], self._seconds,
                     _all_of([work.finish for work in works]), [one for work in works for one in work.before])
        return self._taken_in(whole, all(work.what not in _NOT_BEFORE_BARRIERS for work in works))

    def _work(self, what: str, ops: Any, outputs: Sequence[Any], opts: Any = None,
              finish: Callable[[], None] | None = None, before: Sequence[Work] = ()) -> Work:
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else self._seconds
        self._sequence += 1
        work = Work(what, ops if isinstance(ops, list) else (ops,), outputs, seconds, finish, before)
        if self._collected is None:
            return self._taken_in(work, what not in _NOT_BEFORE_BARRIERS)
        self._collected.append(work)  # its ops and its end become the whole's, so nobody else may look after it
        return work

    def _taken_in(self, work: Work, before_barriers: bool) -> Work:
        """The work, once the group has noted what it has to know of it."""
        outputs = work.outputs
        if _KEEPS_ALL or (len(outputs) == 1 and outputs[0].numel() == 1):
            while len(self._kept) > _KEPT and (not _KEEPS_ALL or self._kept[0].is_completed()):
                self._kept.popleft()
            self._kept.append(work)
        if before_barriers:
            if len(self._under_way) > self._look_at:
                self._let_go_of_passed()
            work.registry = self._under_way
            self._under_way[id(work)] = work
        if torch.autograd._profiler_enabled() and all(tensor.is_cpu for tensor in outputs):  # pylint: disable=protected-access
            work.record()
        return work

    def _let_go_of_passed(self) -> None:
        """Works whose handles are dropped keep their tensors no longer than until the group looks the next time. It does so
        when they have doubled, so a work is looked at once or twice however many are under way."""
        for work in list(self._under_way.values()):
            if work.has_passed():
                self._under_way.pop(id(work), None)
        self._look_at = max(_KEPT, 2 * len(self._under_way))

    def _group(self, function: Any, keep: Any, given: Sequence[bytes], wanted: Sequence[bytes], *rest: Any,
               prescale: float = 1.0) -> list[_ops.Op]:
        """A grouped op, in as many groups as it needs."""
        ops: list[_ops.Op] = []
        for begin in range(0, len(given), _native.GROUP_MAX):
            count = len(given[begin:begin + _native.GROUP_MAX])
            ops += self._start(function, keep, None, b"".join(given[begin:begin + count]),
                               b"".join(wanted[begin:begin + count]), count, *rest, prescale=prescale, count=count)
        return ops

    # ---- reductions ----

    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> Work:
        """In place."""
        opts = opts or dist.AllreduceOptions()
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors[0], opts)
        tensor, = _one(tensors, "all_reduce")
        reduction = _Reduction(opts.reduceOp, tensor.dtype)
        if reduction.bitwise is not None:
            return self._begun("all_reduce", [self._reduce_bits(tensor, reduction)], tensors, opts)
        room = _dense(tensor)
        where = reduction.describe(room)
        op = self._start(lib.hvd_allreduce_async, room, None, where, where, reduction.op,
                         prescale=reduction.prescale)
        return self._work("all_reduce", op, tensors, opts, _copy_back([(tensor, room)]))

    def _begun(self, what: str, parts: Sequence[_Part], outputs: Sequence[Any], opts: Any) -> Work:
        return self._work(what, [op for op, _ in parts], outputs, opts, _all_of([finish for _, finish in parts]))

    def _reduce_bits(self, tensor: Any, reduction: _Reduction, into: bool = True) -> _Part:
        """Everybody's elements to everybody, who combines them."""
        given = _dense(tensor)
        everything = _empty((self._size, tensor.numel()), tensor)
        op = self._start(lib.hvd_allgather_async, (given, everything), None, _moved(given), _moved(everything))

        def finish() -> None:
            if into:
                tensor.detach().copy_(fold(reduction.bitwise, everything.unbind()).view(tensor.shape))
        return op, finish

    def _allreduce_sparse(self, tensor: Any, opts: Any) -> Work:
        """Everybody's indices and values to everybody, who adds them up on the host."""
        name, _ = _name_of(opts.reduceOp)
        if name != "SUM":
            raise ValueError(f"ReduceOp.{name} of sparse tensors is not known to the process group hvd; SUM is")
        given = _sparse.packed(tensor)
        ops = [self._start(lib.hvd_allgather_async, one, None, _moved(one), None, owns_result=True) for one in given]

        def finish() -> None:
            numbers, values = [_fetched(op, one) for op, one in zip(ops, given)]
            with torch.no_grad():  # a detached sparse tensor would get indices and values of its own
                tensor.copy_(_sparse.total(numbers, values, self._size, tensor))
        return self._work("all_reduce", ops, [tensor], opts, finish)

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> Work:
        """All in place, together."""
        opts = opts or dist.AllreduceCoalescedOptions()
        _check(tensors)
        reductions = [_Reduction(opts.reduceOp, tensor.dtype) for tensor in tensors]
        if any(reduction.bitwise is not None for reduction in reductions):
            parts = [self._reduce_bits(tensor, one) for tensor, one in zip(tensors, reductions)]
            return self._begun("all_reduce_coalesced", parts, tensors, opts)
        rooms = [_dense(tensor) for tensor in tensors]
        where = [one.describe(room) for one, room in zip(reductions, rooms)]
        ops = self._group(lib.hvd_grouped_allreduce_async, rooms, where, where, reductions[0].op if reductions else 0,
                       prescale=reductions[0].prescale if reductions else 1.0)
        return self._work("all_reduce_coalesced", ops, tensors, opts, _copy_back(list(zip(tensors, rooms))))

    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> Work:
        """In place at the root; the others' tensors stay as they are."""
        opts = opts or dist.ReduceOptions()
        tensor, = _one(tensors, "reduce")
        is_root = self._member("reduce", opts.rootRank) == self._rank
        reduction = _Reduction(opts.reduceOp, tensor.dtype)
        if reduction.bitwise is not None:
            return self._begun("reduce", [self._reduce_bits(tensor, reduction, into=is_root)], tensors, opts)
        given = _dense(tensor)
        room = given if is_root else torch.empty_like(given)
        op = self._start(lib.hvd_allreduce_async, (given, room), None, reduction.describe(given),
                         reduction.describe(room), reduction.op, prescale=reduction.prescale)
        at_root = _copy_back([(tensor, room)]) if is_root else None
        return self._work("reduce", op, tensors, opts, at_root)

    def _scatter_reduced(self, what: str, output: Any, given: Any, opts: Any) -> _Part:
        """`given` has one equal part for every member."""
        _check((output, given))
        if given.numel() != output.numel() * self._size:
            raise ValueError(f"{what}: the input has {given.numel()} elements; the output's {output.numel()} times the "
                             f"{self._size} members are {output.numel() * self._size}")
        reduction = _Reduction(opts.reduceOp, given.dtype)
        room, given = _room(output), _dense(given)
        if reduction.bitwise is not None:
            return self._scatter_bits(output, given, reduction)
        op = self._start(lib.hvd_reducescatter_async, (given, room), None, reduction.describe(given, self._size),
                         reduction.describe(room, 1), reduction.op, prescale=reduction.prescale)
        return op, _copy_back([(output, room)])

    def _scatter_bits(self, output: Any, given: Any, reduction: _Reduction) -> _Part:
        parts = _empty((self._size, output.numel()), output)
        op = self._exchange(given, parts, None)

        def finish() -> None:
            output.detach().copy_(fold(reduction.bitwise, parts.unbind()).view(output.shape))
        return op, finish

    def reduce_scatter(self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None) -> Work:
        """Each member gets its tensor of the lists, reduced."""
        opts = opts or dist.ReduceScatterOptions()
        output, = _one(outputs, "reduce_scatter")
        if len({tensor.numel() for tensor in inputs[0]}) > 1:
            return self._scatter_unequal(output, inputs[0], opts)
        part = self._scatter_reduced("reduce_scatter", output, _joint(inputs[0], "reduce_scatter"), opts)
        return self._begun("reduce_scatter", [part], outputs, opts)

    def _scatter_unequal(self, output: Any, parts: Sequence[Any], opts: Any) -> Work:
        """Everybody's reduction, of which each member takes its part: the library scatters equal parts."""
        counts = [tensor.numel() for tensor in parts]
        if len(counts) != self._size or counts[self._rank] != output.numel():
            raise ValueError(f"reduce_scatter: the list needs {self._size} tensors, this rank's of {output.numel()} elements")
        given = _dense(_joint(parts, "reduce_scatter"))
        reduction = _Reduction(opts.reduceOp, given.dtype)
        if reduction.bitwise is not None:
            raise ValueError(f"reduce_scatter: ReduceOp.{reduction.name} needs tensors of one size")
        room = _empty(given.numel(), given)
        op = self._start(lib.hvd_allreduce_async, (given, room), None, reduction.describe(given), reduction.describe(room),
                         reduction.op, prescale=reduction.prescale)

        def finish() -> None:
            output.detach().copy_(room.split(counts)[self._rank].view(output.shape))
        return self._work("reduce_scatter", op, [output], opts, finish)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """Each member gets its equal part of the input, reduced."""
        opts = opts or dist.ReduceScatterOptions()
        part = self._scatter_reduced("reduce_scatter_tensor", output, given, opts)
        return self._begun("reduce_scatter_tensor", [part], [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Several, together."""
        opts = opts or dist.ReduceScatterOptions()
        _check([*outputs, *inputs])
        for output, given in zip(outputs, inputs):
            if given.numel() != output.numel() * self._size:
                raise ValueError(f"reduce_scatter_tensor_coalesced: an input of {given.numel()} elements for an output "
                                 f"of {output.numel()} and {self._size} members")
        reductions = [_Reduction(opts.reduceOp, given.dtype) for given in inputs]
        if any(one.bitwise is not None for one in reductions):
            return self._begun("reduce_scatter_tensor_coalesced",
                               [self._scatter_reduced("reduce_scatter_tensor", output, given, opts)
                                for output, given in zip(outputs, inputs)], outputs, opts)
        rooms, sources = [_room(output) for output in outputs], [_dense(given) for given in inputs]
        ops = self._group(lib.hvd_grouped_reducescatter_async, (sources, rooms),
                       [one.describe(given, self._size) for one, given in zip(reductions, sources)],
                       [one.describe(room, 1) for one, room in zip(reductions, rooms)],
                       reductions[0].op if reductions else 0,
                       prescale=reductions[0].prescale if reductions else 1.0)
        return self._work("reduce_scatter_tensor_coalesced", ops, outputs, opts, _copy_back(list(zip(outputs, rooms))))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moving ----

    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> Work:
        """In place."""
        opts = opts or dist.BroadcastOptions()
        tensor, = _one(tensors, "broadcast")
        is_root = self._member("broadcast", opts.rootRank) == self._rank
        room = _dense(tensor) if is_root else _room(tensor)
        where = _moved(room)
        op = self._start(lib.hvd_broadcast_async, room, None, where, where, self._ranks[opts.rootRank])
        back = _copy_back([(tensor, room)]) if not is_root else None
        return self._work("broadcast", op, tensors, opts, back)

    def _gather_into(self, what: str, output: Any, given: Any) -> tuple[Any, Any]:
        _check((output, given))
        if output.numel() != given.numel() * self._size or output.dtype != given.dtype:
            raise ValueError(f"{what}: the output needs {given.numel() * self._size} elements of {given.dtype} "
                             f"({self._size} members), it has {output.numel()} of {output.dtype}")
        return _dense(given), _room(output)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """The members' tensors one behind the other in `output`."""
        source, room = self._gather_into("all_gather_into_tensor", output, given)
        op = self._start(lib.hvd_allgather_async, (source, room), None, _moved(source), _moved(room))
        return self._work("all_gather_into_tensor", op, [output], opts, _copy_back([(output, room)]))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Several, together."""
        pairs = [self._gather_into("all_gather_into_tensor_coalesced", *pair) for pair in zip(outputs, inputs)]
        ops = self._group(lib.hvd_grouped_allgather_async, pairs, [_moved(source) for source, _ in pairs],
                       [_moved(room) for _, room in pairs])
        return self._work("all_gather_into_tensor_coalesced", ops, outputs, opts,
                          _copy_back([(output, room) for output, (_, room) in zip(outputs, pairs)]))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Everybody's tensor in everybody's list; they may differ in size."""
        given, = _one(inputs, "all_gather")
        targets, source = list(outputs[0]), _dense(given)
        _check(targets)
        if len(targets) != self._size or targets[self._rank].numel() != given.numel():
            raise ValueError(f"all_gather: the output list needs {self._size} tensors, this rank's of {given.numel()} "
                             "elements")
        room, finish = _scattered(targets, given)
        op = self._start(lib.hvd_allgather_async, (source, room), None, _moved(source), _moved(room))
        return self._work("all_gather", op, targets, opts, finish)

    def allgather_coalesced(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Work:
        """outputs[member][i] = inputs[i] of that member."""
        _check(inputs)
        lists = [[member[at] for member in outputs] for at in range(len(inputs))]
        rooms = [_scattered(targets, given) for targets, given in zip(lists, inputs)]
        sources = [_dense(given) for given in inputs]
        ops = self._group(lib.hvd_grouped_allgather_async, (sources, rooms), [_moved(source) for source in sources],
                       [_moved(room) for room, _ in rooms])

        def finish() -> None:
            for _, one in rooms:
                if one is not None:
                    one()
        return self._work("all_gather_coalesced", ops, [tensor for targets in lists for tensor in targets], opts, finish)

    def _exchange(self, given: Any, room: Any, splits: Sequence[int] | None, owns_result: bool = False) -> _ops.Op:
        """An alltoall of elements; `splits` counts them. `owns_result`: it keeps its numbers, for _checked()."""
        _, each = _bytes_code(given)
        counts = None if splits is None else [count * each for count in splits]
        return self._start(lib.hvd_alltoall_async, (given, room), None, _moved(given), _ops.splits_array(counts),
                           _moved(room), owns_result=owns_result)

    def gather(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Everybody's tensor in the root's list."""
        opts = opts or dist.GatherOptions()
        given, = _one(inputs, "gather")
        is_root = self._member("gather", opts.rootRank) == self._rank
        targets = list(outputs[0]) if is_root and outputs else []
        if is_root and len(targets) != self._size:
            raise ValueError(f"gather: the root's list needs {self._size} tensors")
        _check(targets)
        room, finish = _scattered(targets, given)
        source = _dense(given)
        op = self._exchange(source, room, self._only(opts.rootRank, given.numel()))
        return self._work("gather", op, targets, opts, finish)

    def gather_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """Everybody's tensor one behind the other in the root's `output`, which is nothing to the others."""
        opts = opts or dist.GatherOptions()
        is_root = self._member("gather_single", opts.rootRank) == self._rank
        source, room = self._gather_into("gather_single", output, given) if is_root else (_dense(given), _empty(0, given))
        op = self._exchange(source, room, self._only(opts.rootRank, given.numel()))
        return self._work("gather_single", op, [output] if is_root else [], opts,
                          _copy_back([(output, room)]) if is_root else None)

    def scatter(self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None) -> Work:
        """Each member gets its tensor of the root's list."""
        opts = opts or dist.ScatterOptions()
        output, = _one(outputs, "scatter")
        is_root = self._member("scatter", opts.rootRank) == self._rank
        sources = list(inputs[0]) if is_root and inputs else []
        if is_root and len(sources) != self._size:
            raise ValueError(f"scatter: the root's list needs {self._size} tensors")
        given = _joint(sources, "scatter") if sources else _empty(0, output)
        room = _room(output)
        op = self._exchange(given, room, [tensor.numel() for tensor in sources] or [0] * self._size, owns_result=True)
        return self._work("scatter", op, [output], opts,
                          self._checked("scatter", op, [(opts.rootRank, output.numel())], room,
                                        _copy_back([(output, room)])))

    def _only(self, member: int, count: int) -> list[int]:
        return [count if place == member else 0 for place in range(self._size)]

    def _checked(self, what: str, op: _ops.Op, wanted: Sequence[tuple[int, int]], room: Any,
                 then: Callable[[], None] | None) -> Callable[[], None]:
        """What checks, before `then`, how many elements came from which members. The op must keep its numbers."""
        _, each = _bytes_code(room)

        def finish() -> None:
            op.wait_here()
            with op.held():
                received = op.received_splits(self._size)
            for member, count in wanted:
                if received[member] != count * each:
                    raise DistributedError(f"{what}: rank {self._ranks[member]} sent {received[member] // each} elements, "
                                           f"and {count} were due")
            if then is not None:
                then()
        return finish

    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Work:
        """Tensor i of the list goes to member i; sizes may differ."""
        _check([*outputs, *inputs])
        if len(outputs) != self._size or len(inputs) != self._size:
            raise ValueError(f"all_to_all: both lists need {self._size} tensors")
        room, back = _scattered(list(outputs), inputs[0])
        op = self._exchange(_joint(inputs, "all_to_all"), room, [tensor.numel() for tensor in inputs], owns_result=True)
        wanted = [(member, tensor.numel()) for member, tensor in enumerate(outputs)]
        return self._work("all_to_all", op, outputs, opts, self._checked("all_to_all", op, wanted, room, back))

    def all_to_all_single(self, output: Any, given: Any, output_splits: Sequence[int], input_splits: Sequence[int],
                          opts: Any = None) -> Work:
        """Rows of the input to the members, by splits or in equal parts; the rows received, by member, in the output."""
        _check((output, given))
        taken = _elements(output, output_splits, self._size)
        room = _room(output)
        op = self._exchange(_dense(given), room, _elements(given, input_splits, self._size), owns_result=True)
        return self._work("all_to_all_single", op, [output], opts,
                          self._checked("all_to_all_single", op, list(enumerate(taken)), room,
                                        _copy_back([(output, room)])))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        """Finished when every member has called it, and this one's collectives before it are finished, well or not."""
        self._look_at = _KEPT  # what is under way now passes with the barrier
        op = _ops.submit(lib.hvd_barrier_async, None, None, _ops.options(1.0, 1.0, self._number()))
        return self._work("barrier", op, [], opts, before=list(self._under_way.values()))

    # ---- point to point ----

    def send(self, tensors: Sequence[Any], dst: int, tag: int) -> Work:
        """To group rank `dst`; finished when it has been received."""
        tensor, = _one(tensors, "send")
        source = _dense(tensor)
        op = self._start(lib.hvd_send_async, source, _moved(source), self._ranks[self._member("send", dst)], tag)
        return self._work("send", op, tensors)

    def recv(self, tensors: Sequence[Any], src: int, tag: int) -> Work:
        """From group rank `src`."""
        return self._receive(tensors, self._ranks[self._member("recv", src)], tag)

    def recv_anysource(self, tensors: Sequence[Any], tag: int) -> Work:
        """From whoever sends first with this tag; source_rank() says who it was."""
        return self._receive(tensors, _ANY_RANK, tag)

    def _receive(self, tensors: Sequence[Any], source: int, tag: int) -> Work:
        tensor, = _one(tensors, "recv")
        room = _room(tensor)
        whose = source == _ANY_RANK
        op = self._start(lib.hvd_recv_async, room, _moved(room), source, tag, owns_result=whose)
        back = _copy_back([(tensor, room)])
        if not whose:
            work = self._work("recv", op, tensors, None, back)
            work.source = self._ranks.index(source)
            return work

        def finish() -> None:
            op.wait_here()
            with op.held():
                work.source = self._ranks.index(quick.hvd_op_source(op.pointer))
            if back is not None:
                back()
        work = self._work("recv", op, tensors, None, finish)
        return work

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names who does not come within `timeout`. Group rank 0 knows them all (`wait_all_ranks`), or
        the first; the others know only that it did not let them go on."""
        limit = max(timeout, _LEAST) if timeout is not None and timeout >= timedelta(0) else timedelta(seconds=self._seconds)
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        if self._rank != 0:
            self._pass_monitor(token, limit)
            return
        deadline = time.monotonic() + limit.total_seconds()
        tokens = [torch.empty(1, dtype=torch.uint8, device="cpu") for _ in range(self._size)]
        works = [self.recv([tokens[member]], member, _BARRIER_TAG) for member in range(1, self._size)]
        missing = []
        for member, work in enumerate(works, 1):
            left = max(0.001, deadline - time.monotonic())
            try:
                work.wait(timedelta(seconds=left))
            except DistributedError as error:
                if work.done:
                    raise
                if work.take_back():
                    continue  # it has just come
                missing.append(self._ranks[member])
                if not wait_all_ranks:
                    for later in works[member:]:
                        later.take_back()
                    raise _missing(missing, limit) from error
        if missing:
            raise _missing(missing, limit)
        for work in [self.send([token], member, _BARRIER_TAG) for member in range(1, self._size)]:
            work.wait(limit)


    def _pass_monitor(self, token: Any, limit: timedelta) -> None:
        """A rank's part of monitored_barrier: says that it has come, and waits for group rank 0."""
        for start in (self.send, self.recv):
            work = start([token], 0, _BARRIER_TAG)
            try:
                work.wait(limit)
            except DistributedError as error:
                if work.done:
                    raise
                if work.take_back():
                    continue
                raise DistributedError(f"monitored_barrier: rank {self._ranks[0]} did not let this rank go on within "
                                       f"{limit.total_seconds():g} s; its own error says which rank did not come") from error


@untraced
class ProcessGroupHvd(_Group, dist.ProcessGroup):
    """A process group over hvd, with all of its `devices`; made by torch.distributed."""

    def __init__(self, *arguments: Any, devices: Sequence[str] = ("cpu", "cuda")) -> None:
        super().__init__(*arguments)
        self._devices = devices
        self._names = {"name": "", "desc": "undefined"}
        self._store: Any = None  # of a split

    # The shorter forms of torch's own groups: a tensor for a list of one, and for the options what they would hold.
    def allreduce(self, tensors: Any, *how: Any, **named: Any) -> Work:
        """Of a tensor or a list of one: `op`, `timeout`."""
        return super().allreduce(_listed(tensors), _options(_c10d.AllreduceOptions, ("op",), how, named))

    def broadcast(self, tensors: Any, *how: Any, **named: Any) -> Work:
        """Of a tensor: `root`, `timeout`."""
        return super().broadcast(_listed(tensors), _options(_c10d.BroadcastOptions, ("root",), how, named))

    def reduce(self, tensors: Any, *how: Any, **named: Any) -> Work:
        """Of a tensor: `root`, `op`, `timeout`."""
        return super().reduce(_listed(tensors), _options(_c10d.ReduceOptions, ("root", "op"), how, named))

    def allgather(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Work:
        """Of a tensor into a list: `timeout`."""
        return super().allgather(*_paired(outputs, inputs, inputs), _options(_c10d.AllgatherOptions, (), how, named))

    def gather(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Work:
        """Of a tensor into a list: `root`, `timeout`."""
        return super().gather(*_paired(outputs, inputs, inputs), _options(_c10d.GatherOptions, ("root",), how, named))

    def scatter(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Work:
        """Of a list into a tensor: `root`, `timeout`."""
        return super().scatter(*_paired(outputs, inputs, outputs), _options(_c10d.ScatterOptions, ("root",), how, named))

    def reduce_scatter(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Work:
        """Of a list into a tensor: `op`, `timeout`."""
        return super().reduce_scatter(*_paired(outputs, inputs, outputs),
                                      _options(_c10d.ReduceScatterOptions, ("op",), how, named))

    def barrier(self, *how: Any, **named: Any) -> Work:
        """`timeout`."""
        return super().barrier(_options(_c10d.BarrierOptions, (), how, named))

    # C++ keeps names with its own kind of backends only.
    def setGroupName(self, name: str) -> None:  # pylint: disable=invalid-name
        """By torch, once."""
        self._names["name"] = name

    def getGroupName(self) -> str:  # pylint: disable=invalid-name
        """What torch calls the group."""
        return self._names["name"]

    def setGroupDesc(self, desc: str) -> None:  # pylint: disable=invalid-name
        """By torch, once."""
        self._names["desc"] = desc

    def getGroupDesc(self) -> str:  # pylint: disable=invalid-name
        """What the group is for."""
        return self._names["desc"]

    # PyTorch whose C++ does not call the methods above (before its pull request 141529) reads these.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def _get_backend(self, device: Any) -> Any:
        del device
        return self

    @property
    def _device_types(self) -> list[Any]:
        # While torch makes the group it takes one with a device for its own kind, and asks C++ for what is not there. Of a
        # split it must know the devices before; there its recorder of ops alone asks C++.
        is_made = self in dist.distributed_c10d._world.pg_map  # pylint: disable=protected-access
        asks = sys._getframe(1).f_code.co_name  # pylint: disable=protected-access
        is_split = self._store is not None and asks != "_maybe_attach_flight_recorder"
        return [torch.device(name) for name in self._devices
                if name == "cpu" or getattr(torch, name).is_available()] if is_made or is_split else []

    def split_group(self, new_ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None,
                    group_name: str | None = None, group_desc: str | None = None,
                    device_types: Sequence[Any] | None = None) -> ProcessGroupHvd | None:
        """A group of the members with these group ranks, in ascending order; None for other members, who have no part in it."""
        del opts
        if self._rank not in new_ranks:
            return None
        ranks = [self._ranks[place] for place in new_ranks]
        name = group_name or f"{self.getGroupName()}:{','.join(map(str, ranks))}"
        group = ProcessGroupHvd(list(new_ranks).index(self._rank), len(ranks), ranks, timeout or timedelta(seconds=self._seconds),
                                _open_set("split_group", ranks, name),
                                devices=[device.type for device in device_types] if device_types else self._devices)
        group._store = dist.PrefixStore(f"{name}/", dist.distributed_c10d._get_process_group_store(self))
        group.setGroupName(name)
        group.setGroupDesc(group_desc or "undefined")
        return group

    def get_group_store(self) -> Any:
        """Of a group that split_group has made; torch has those of others."""
        return self._store

    def _start_coalescing(self, device: Any) -> None:
        del device
        self.start_coalescing()

    def _end_coalescing(self, device: Any, requests: Any = None) -> Work:
        del device, requests  # torch 2.0 has the works in a list of its own
        return self.end_coalescing()


@untraced
class BackendHvd(_Group, _TorchBackend):
    """hvd's part of a group of torch's own, beside other backends; made by torch.distributed. torch's C++ gives out works that
    forward wait() and get_future() to ours, and nothing else: is_completed() is never true there, and a recv from any source
    does not know its source (PyWorkHolder of PyTorch 2.15)."""

    @property
    def options(self) -> Any:
        """What a group that is split from this one begins with."""
        return _TorchBackend.Options("hvd", timedelta(seconds=self._seconds))

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> BackendHvd:
        """A backend of the members with these group ranks, in ascending order, of which this is one."""
        del store
        members = [self._ranks[place] for place in ranks]
        timeout = getattr(opts, "_timeout", None) or timedelta(seconds=self._seconds)
        return BackendHvd(list(ranks).index(self._rank), len(members), members, timeout,
                          _open_set("split_group", members, opts.group_name))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:  # type: ignore[override]
        """_Group's, as C++ calls it."""
        super().monitored_barrier(opts.timeout, wait_all_ranks)


def _missing(ranks: Sequence[int], limit: timedelta) -> DistributedError:
    names = ", ".join(map(str, ranks))
    return DistributedError(f"monitored_barrier: {'rank' if len(ranks) == 1 else 'ranks'} {names} did not call it within "
                            f"{limit.total_seconds():g} s")


# ---- the shorter forms of calls ----

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def _options(kind: Any, names: Sequence[str], how: Sequence[Any], named: dict[str, Any]) -> Any:
    """torch's options of a collective, as they are or made of what stands in their place: `names` in their order, and `timeout`."""
    given = dict(zip(("opts",) if how and isinstance(how[0], kind) else (*names, "timeout"), how), **named)
    options = given.pop("opts", None) or kind()
    for name, value in given.items():
        if name not in names and name != "timeout":
            raise TypeError(f"{kind.__name__} has no {name!r}")
        if value is not None:
            setattr(options, _FIELDS[name], value)
    return options


def _listed(tensors: Any) -> Sequence[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _paired(outputs: Any, inputs: Any, one: Any) -> tuple[Any, Any]:
    return ([outputs], [inputs]) if isinstance(one, torch.Tensor) else (outputs, inputs)


# ---- lists of tensors ----


def _one(tensors: Sequence[Any], what: str) -> Sequence[Any]:
    if len(tensors) != 1:
        raise ValueError(f"{what}: one tensor per process is needed, not {len(tensors)}")
    _check(tensors)
    return tensors


def _joint(tensors: Sequence[Any], what: str) -> Any:
    """The tensors one behind the other; where they lie like that already, there."""
    _check(tensors)
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        raise ValueError(f"{what}: all tensors must have one type")
    return _neighbours(tensors) if _are_neighbours(tensors) else torch.cat([_dense(one).reshape(-1) for one in tensors])


def _are_neighbours(tensors: Sequence[Any]) -> bool:
    at = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or not _is_dense(tensor):
            return False
        at += tensor.numel() * tensor.element_size()
    storage = tensors[0].untyped_storage()
    return at <= storage.data_ptr() + storage.nbytes()


def _neighbours(tensors: Sequence[Any]) -> Any:
    return tensors[0].detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def _scattered(tensors: Sequence[Any], like: Any) -> tuple[Any, Callable[[], None] | None]:
    """Memory for all of them one behind the other, of the type of `like`, and what copies it to them at the end."""
    if tensors and _are_neighbours(tensors):
        return _neighbours(tensors), None
    counts = [tensor.numel() for tensor in tensors]
    room = _empty(sum(counts), tensors[0] if tensors else like, like.dtype)

    def copy() -> None:
        for tensor, part in zip(tensors, room.split(counts)):
            tensor.detach().copy_(part.view(tensor.shape))
    return room, copy if tensors else None


def _elements(tensor: Any, splits: Sequence[int], size: int) -> list[int]:
    """How many elements belong to each member."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits:
        if len(splits) != size or sum(splits) != rows:
            raise ValueError(f"all_to_all_single: {len(splits)} splits with the sum {sum(splits)} for {size} members and "
                             f"{rows} rows")
        each = tensor.numel() // rows if rows else 0
        return [count * each for count in splits]
    if rows % size:
        raise ValueError(f"all_to_all_single: {rows} rows cannot be cut into {size} equal parts; give splits")
    return [tensor.numel() // size] * size


def _all_of(finishes: Sequence[Callable[[], None] | None]) -> Callable[[], None] | None:
    wanted = [finish for finish in finishes if finish is not None]

    def finish() -> None:
        for one in wanted:
            one()
    return finish if wanted else None


# ---- making groups ----


def _session_for(store: Any, rank: int, size: int) -> bool:
    """The process' session as this rank of so many; whether it was opened now."""
    fields: dict[str, Any] = {"rank": rank, "size": size}
    if not _session.is_open() and not os.environ.get("HVD_JOB_ID"):
        key = f"hvd/job/{next(_job_numbers)}"
        if rank == 0:
            store.set(key, f"torch-{uuid.uuid4().hex[:16]}")
        fields["job"] = store.get(key).decode()
    opened = basics.attach(lambda: fields)
    session = _session.current()
    if (session.rank, session.size) != (rank, size):
        raise RuntimeError(f"init_process_group: this process is rank {rank} of {size} for torch, but hvd.init() has made "
                           f"it rank {session.rank} of {session.size}; start it by one launcher only")
    return opened


def _wanted_backends() -> dict[str, str]:
    """Of the group that torch is making: device -> backend. torch tells a backend its own part only, so the caller is asked."""
    frame: Any = sys._getframe()  # pylint: disable=protected-access
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config: Any = frame.f_locals.get("backend_config") if frame is not None else None
    return dict(config.get_device_backend_map()) if hasattr(config, "get_device_backend_map") else {}


def _open_set(what: str, ranks: list[int], name: str) -> _ops.Op:
    """Begins to open the process set of a group. Its members wait for each other in the group's first op."""
    if ranks != sorted(ranks):
        raise ValueError(f"{what}: the ranks of a process group of hvd are in ascending order, not {ranks}")
    wanted = (ctypes.c_int * len(ranks))(*ranks)
    tag = zlib.crc32(name.encode()) & 0x7fffffff
    return _ops.submit(lib.hvd_process_set_open_async, None, wanted, len(ranks), tag, owns_result=True)


def _create(options: Any, backend_options: Any) -> Any:
    """Called by torch on the members of a new group."""
    del backend_options
    wanted = _wanted_backends()
    make: Any = BackendHvd
    if set(wanted.values()) <= {"hvd"}:
        make = partial(ProcessGroupHvd, devices=[torch.device(name).type for name in wanted]) if wanted else ProcessGroupHvd
    elif _TorchBackend is object:
        raise ValueError(f"hvd stands beside other backends in a process group from PyTorch 2.15 on, and this is {torch.__version__}; "
                         'use init_process_group("hvd") for all devices, or a new_group(backend="hvd"), after hvd.init()')
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        opened = _session_for(options.store, options.group_rank, options.group_size)
        return make(options.group_rank, options.group_size, range(options.group_size), options.timeout, None, opened)
    opening = _open_set("new_group", ranks, str(options.group_id))
    return make(options.group_rank, options.group_size, ranks, options.timeout, opening)


def register() -> None:
    """Makes the backend "hvd" known to torch. May be repeated."""
    if "HVD" not in dist.Backend._plugins:  # pylint: disable=protected-access
        takes_devices = "devices" in inspect.signature(dist.Backend.register_backend).parameters  # since torch 2.1
        more: dict[str, Any] = {"devices": ["cpu", "cuda"]} if takes_devices else {}
        dist.Backend.register_backend("hvd", _create, extended_api=True, **more)


register()
