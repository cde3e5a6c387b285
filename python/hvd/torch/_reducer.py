# SPDX-License-Identifier: Apache-2.0
"""Reduces the gradients of a set of parameters while they are being computed.

    hook of a parameter ──► its gradient into its place in a bucket ──► the last of its segment: one allreduce of it
    finish()            ──► zeros for what did not come ──► waits ──► p.grad is the reduced gradient

A `Slot` is a parameter's place, a `Segment` what one op reduces: a large gradient or a run of small ones. Which slots
share a segment follows from their names (`_buckets.compose`), never from the order in which gradients come, so ranks
agree without talking; and `finish` completes every segment on every rank, so none waits for ever.

The plan (who is where) belongs to a session, and so does a step that is under way: after a shutdown both begin anew, as
they do on ranks that are new in the job.

A slot is *direct* when p.grad itself lies in the bucket. With the gradient still there from the last step, autograd adds
to it in place. After zero_grad(set_to_none=True) autograd makes a tensor of its own, which the hook copies: cheaper
than zeroes before and an addition after. Slots that are not direct (compressed gradients, deltas, devices that the engine
does not reach) have a wire tensor in the bucket and are copied in before the op and out after it.

Gradients on a CUDA device: their buckets are there too, an op takes part in the stream in which the last gradient of its
segment came, and finish() lets the current stream wait, not the caller. Where the engine does not reach the device, buckets
are pinned memory of the host. A copy to it is asynchronous, and its op is submitted when the copy is found done: at a later
gradient, at the latest in the hook of the step's last one, which waits for the copies one by one.
"""
from __future__ import annotations

import collections
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hvd import _native, _ops, _session, collectives
from hvd.basics import Average, Sum
from hvd.process_sets import ProcessSet, id_of
from hvd.torch import _buckets, _cuda, _device_buckets, mpi_ops
from hvd.torch._framework import CODES, engine, framework
from hvd.torch.compression import Compression

#: Complex numbers are reduced as pairs: type of the elements on the wire, and how many make one.
_PAIRS = {torch.complex64: (torch.float32, 2), torch.complex128: (torch.float64, 2)}
_CASTS = {Compression.none: None, Compression.fp16: torch.float16, Compression.bf16: torch.bfloat16}

TOO_MANY_PASSES = ("Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                   "backward_passes_per_step to accumulate gradients locally.")


def _item_size(dtype: Any) -> int:
    return torch.empty(0, dtype=dtype, device="cpu").element_size()


class Slot:
    """A parameter and where its gradient goes."""
    __slots__ = ("parameter", "name", "group", "delay", "arrived", "place", "offset", "address", "wire", "like",
                 "direct", "segment", "sparse_dim", "sparse", "pending", "hook", "users")

    def __init__(self, parameter: Any, name: str, group: Any, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.delay = passes          # backward passes until the gradient is complete
        self.arrived = False
        self.place: Any = None       # the tensor in the bucket, of type `wire`, `offset` bytes from its beginning
        self.users: Any = None       # a reference that is dead when no tensor uses its memory; None: the bucket cannot tell
        self.wire: Any = None
        self.offset = 0
        self.address = 0
        self.like: Any = None        # type and device of the gradients that it was made for
        self.direct = False
        self.segment: Segment | None = None
        self.sparse_dim: int | None = None  # of the last gradient that was sparse
        self.sparse: Any = None      # the sparse gradient of this step, where it travels as such
        #: gives the result of ops of its own (sparse, custom compression)
        self.pending: Callable[[], Any] | None = None
        self.hook: Any = None        # what autograd calls, and what keeps that alive

    def settle_in(self) -> None:
        """A new tensor at the slot's place in its bucket."""
        assert self.segment is not None
        self.place, self.users = self.segment.bucket.tensor(self.offset, self.parameter, self.wire)
        self.address = self.place.data_ptr()

    def home(self) -> Any:
        """The tensor in the bucket; a new one if the last was given other memory (`p.grad.data = ...`, model.half())."""
        if self.place.data_ptr() != self.address:
            self.settle_in()
        return self.place


class Segment:
    """Slots that one op reduces. `missing` of them have not come yet; of a device, the others came in `streams`."""
    __slots__ = ("slots", "missing", "name", "tensor", "bucket", "op", "streams")

    def __init__(self, slots: list[Slot], name: str) -> None:
        self.slots = slots
        self.missing = len(slots)
        self.name = name.encode()
        self.tensor = b""
        self.bucket: Any = None
        self.op: _ops.Op | None = None
        self.streams: list[Any] = []


def _empty_sparse(like: Any, sparse_dim: int) -> Any:
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=like.device)
    values = torch.empty((0, *like.shape[sparse_dim:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape, device=like.device, check_invariants=False)


def _numbers_of_devices(slots: Iterable[Slot]) -> dict[Any, int]:
    """A number for each device of the parameters, the same on ranks whose devices have other numbers; 0: the host."""
    found = {slot.parameter.device for slot in slots}
    elsewhere = sorted((device for device in found if device.type != "cpu"), key=str)
    return {torch.device("cpu"): 0, **{device: number for number, device in enumerate(elsewhere, 1)}}


def _references(slot: Slot) -> int:
    return sys.getrefcount(slot.place)


def _own_references() -> int:
    slot = Slot(None, "", None, 1)
    slot.place = torch.empty(0, device="cpu")
    return _references(slot)


_OWN_REFERENCES = _own_references()
#: The number of tensors and the like that use a storage, by its address. Builds of PyTorch without CUDA have no such function.
_uses_of = getattr(torch._C, "_storage_Use_Count", None)  # pylint: disable=protected-access


def _uses(place: Any) -> int:
    return _uses_of(place.untyped_storage()._cdata)  # pylint: disable=protected-access


_OWN_USES = 0 if _uses_of is None else _uses(torch.empty(0, device="cpu"))


def hook_of(parameter: Any, fire: Callable[..., None]) -> tuple[Any, Any]:
    """Has `fire` called when autograd has added to the parameter's gradient. Returns the handle that ends it, and what has to be
    kept until then."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(fire), None
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # before torch 2.1
    return node.register_hook(fire), node


class Reducer:
    """The state of a step. Hooks may come from several threads; everything else belongs to the thread that trains."""
    _joins_small = True  # several small gradients in one op
    _allows_direct = True

    def __init__(self, *, op: int, compression: Any, passes: int, prescale: float, postscale: float,
                 sparse_as_dense: bool, process_set: ProcessSet) -> None:
        self.op = op
        self.compression = compression
        self.passes = passes
        self._scales = (prescale, postscale)
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._lock = threading.Lock()
        self._slots: dict[Any, Slot] = {}
        self._planned: list[Slot] = []
        self._segments: list[Segment] = []
        self._launched: list[Segment] = []
        self._session: _session.Session | None = None
        self._how = (prescale, postscale, 0)
        #: Segments of pinned memory whose copies have been started, and the event of each copy.
        self._copying: collections.deque[tuple[Segment, Any]] = collections.deque()
        self._leaving: set[Any] = set()  # parameters that are left out after this step

    # ---- parameters ----

    def __contains__(self, parameter: Any) -> bool:
        return parameter in self._slots

    def add(self, parameter: Any, name: str, group: Any = None) -> None:
        """Watches a parameter that requires gradients. Every rank adds the same names."""
        slot = Slot(parameter, name, group, self.passes)
        self._slots[parameter] = slot
        reducer = weakref.ref(self)

        def fire(*_: Any) -> None:
            alive = reducer()
            if alive is not None:
                alive.ready(slot)
        slot.hook = hook_of(parameter, fire)

    def has_come(self, parameter: Any) -> bool:
        """Whether autograd has added to its gradient in this step."""
        slot = self._slots[parameter]
        return slot.arrived or slot.delay < self.passes

    def leave_out_all_but(self, wanted: set[Any]) -> set[Any]:
        """Watches only these parameters after the current step; until its end the ranks expect the ops of the others. Every
        rank calls it alike. Returns the parameters that will be left out."""
        self._leaving = {parameter for parameter in self._slots if parameter not in wanted}
        return self._leaving

    def _leave_out(self) -> None:
        for parameter in self._leaving:
            self._slots.pop(parameter).hook[0].remove()
        self._leaving = set()
        self._forget_plan()  # segments have other members now

    def hooks(self) -> list[Callable[[], None]]:
        """What autograd calls for each parameter, in the order in which they were added."""
        return [functools.partial(self.ready, slot) for slot in self._slots.values()]

    def __del__(self) -> None:
        if hasattr(self, "_leaving"):
            for slot in self._slots.values():
                slot.hook[0].remove()
            self._forget_plan()  # slots and segments refer to each other: memory goes now, not at the next collection

    # ---- who is where ----

    def _plan(self, slots: list[Slot], session: _session.Session) -> None:
        """Gives slots their segments and their places in buckets."""
        by_name = {slot.name: slot for slot in slots if slot.parameter.numel()}
        wire = {name: self._wire_type(slot.parameter.dtype) for name, slot in by_name.items()}
        sizes = {name: slot.parameter.numel() * _item_size(wire[name]) for name, slot in by_name.items()}
        device_number = _numbers_of_devices(by_name.values())
        where = {name: device_number[slot.parameter.device] for name, slot in by_name.items()}
        composed = _buckets.compose(((name, sizes[name], (str(wire[name]), where[name]), by_name[name].group)
                                     for name in by_name), self._joins_small)
        limit = max(_buckets.BUCKET_BYTES, sum(sizes.values()) // _buckets.BUCKETS_MOST)
        for number in sorted(set(where.values())):
            waiting: list[tuple[Segment, int]] = []
            filled = 0
            for names in (names for names in composed if where[names[0]] == number):
                size = sum(_buckets.padded(sizes[name]) for name in names)
                if waiting and filled + size > limit:
                    self._fill_bucket(self._bucket(filled, waiting), waiting, wire, sizes, session)
                    waiting, filled = [], 0
                more = f"+{len(names) - 1}" if len(names) > 1 else ""
                waiting.append((Segment([by_name[name] for name in names], f"allreduce.{names[0]}{more}"), size))
                filled += size
            if waiting:
                self._fill_bucket(self._bucket(filled, waiting), waiting, wire, sizes, session)
        self._planned += by_name.values()

    def _bucket(self, size: int, segments: list[tuple[Segment, int]]) -> _buckets.Bucket:
        """Memory of the kind that fits the segments' parameters, which lie on one device."""
        parameter = segments[0][0].slots[0].parameter
        if framework.on_host(parameter) or not _cuda.cuda.holds(parameter):
            return _buckets.Bucket(size)
        if framework.is_reached(parameter) or self.compression not in _CASTS:  # a compressor works on the device
            return _device_buckets.OnDevice(size, parameter.device)
        return _device_buckets.Pinned(size, parameter.device)

    def _fill_bucket(self, bucket: _buckets.Bucket, segments: list[tuple[Segment, int]], wire: dict[str, Any],
                     sizes: dict[str, int], session: _session.Session) -> None:
        bucket.share(session)
        begin = 0
        for segment, extent in segments:
            at = begin
            segment.bucket = bucket
            for slot in segment.slots:
                slot.segment, slot.offset, slot.wire = segment, at, wire[slot.name]
                slot.settle_in()
                parameter = slot.parameter
                slot.like = (parameter.dtype, parameter.device)
                slot.direct = (self._allows_direct and slot.wire is parameter.dtype
                               and bucket.holds_gradients_of(parameter))
                at += _buckets.padded(sizes[slot.name])
            segment.tensor = self._describe(segment, bucket.address + begin, extent)
            self._segments.append(segment)
            begin += extent

    @staticmethod
    def _describe(segment: Segment, address: int, extent: int) -> bytes:
        first = segment.slots[0].place
        dtype, factor = _PAIRS.get(first.dtype, (first.dtype, 1))
        shape: tuple[int, ...] = (extent // _item_size(dtype),)
        if len(segment.slots) == 1:
            shape = _buckets.dense_shape(segment.slots[0].parameter) + ((2,) if factor == 2 else ())
        return _native.describe(address, CODES[dtype], shape)

    def _wire_type(self, given: Any) -> Any:
        """The type of the tensor in the bucket, for gradients of type `given`."""
        cast = _CASTS.get(self.compression)
        dtype = cast if cast is not None and given.is_floating_point else given
        if _PAIRS.get(dtype, (dtype,))[0] not in CODES:
            raise ValueError(f"Tensor type {given} is not supported.")
        return dtype

    def _prepare(self) -> None:
        """A plan for this session: made anew after a shutdown, and when tensors have changed their type or device."""
        session = _session.current()
        with self._lock:
            if self._session is session:
                return
            if self._session is not None:
                self.set_passes(self.passes)  # the step that was under way ended with its session
            self._forget_plan()
            self._how = (*self._scales, id_of(self._process_set, "Allreduce"))
            self._plan([slot for slot in self._slots.values() if slot.parameter.requires_grad], session)
            self._session = session

    def _forget_plan(self) -> None:
        self._session = None
        self._planned, self._segments, self._launched = [], [], []
        self._copying.clear()
        for slot in self._slots.values():
            slot.place, slot.segment, slot.pending, slot.sparse, slot.arrived = None, None, None, None, False

    @staticmethod
    def _fits(slot: Slot, gradient: Any) -> bool:
        """Whether the gradient still is what the slot was made for (after model.double() it is not)."""
        return slot.like == (gradient.dtype, gradient.device) and slot.parameter.shape == gradient.shape

    # ---- during backward ----

    def ready(self, slot: Slot) -> None:
        """The hook: autograd has added to the slot's gradient."""
        if self._session is not _session.current():
            self._prepare()
        if slot.delay <= 0:
            raise AssertionError(TOO_MANY_PASSES)
        slot.delay -= 1
        if slot.segment is None:
            return  # new since the plan was made: finish() takes it in, on all ranks at once
        if slot.delay == 0:
            self._take(slot)
            self._arrive(slot)
        elif slot.direct:
            self._settle(slot, slot.parameter.grad)

    def _settle(self, slot: Slot, gradient: Any) -> bool:
        """Moves a plain gradient into the bucket, where autograd adds to it from now on. Whether it could."""
        if gradient is slot.home():
            return True
        if gradient.layout is not torch.strided or gradient.requires_grad or not self._fits(slot, gradient):
            return False
        self._vacate(slot)
        slot.place.copy_(gradient)
        if slot.direct:
            slot.parameter.grad = slot.place
        return True

    def _vacate(self, slot: Slot) -> None:
        """Makes room for another gradient at the slot's place. A user that kept the last one keeps its numbers: the tensor
        itself gets memory of its own. A view of it has no other memory, so the segment moves and leaves it the place."""
        if _references(slot) > _OWN_REFERENCES:
            slot.place.data = slot.place.clone()
        elif slot.users is None or (_uses_of is not None and _uses(slot.place) <= _OWN_USES):
            return
        slot.place = None
        if slot.users is not None and slot.users() is not None:
            assert slot.segment is not None
            self._move(slot.segment)
        else:
            slot.settle_in()

    def _move(self, segment: Segment) -> None:
        """Moves the segment, and the gradients of this step in it, to a bucket of its own. From now on its gradients are
        tensors of their own: a user that keeps views of one step keeps those of the next too."""
        begin = segment.slots[0].offset
        extent = sum(_buckets.padded(slot.parameter.numel() * _item_size(slot.wire)) for slot in segment.slots)
        former, segment.bucket = segment.bucket, _buckets.Bucket(extent)
        assert self._session is not None
        segment.bucket.share(self._session)
        _native.copy_bytes(segment.bucket.address, former.address + begin, extent)
        for slot in segment.slots:
            slot.offset -= begin
            slot.direct = False
            slot.settle_in()
        segment.tensor = self._describe(segment, segment.bucket.address, extent)

    def _take(self, slot: Slot) -> None:
        """Brings the complete gradient to where the op finds it."""
        gradient = self._outgoing(slot)
        if gradient is None:
            self._take_nothing(slot)
            return
        if gradient.layout is torch.sparse_coo:
            slot.sparse_dim = gradient.sparse_dim()
            if self._travels_sparse(slot):
                slot.sparse = gradient.detach()
                return
        if not (slot.direct and self._settle(slot, gradient)):
            dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
            if not self._fits(slot, dense):
                self._replan_for(slot, dense)
            if gradient.layout is torch.strided and slot.direct:
                self._settle(slot, gradient.detach())
            else:
                assert slot.segment is not None
                slot.segment.bucket.copy_in(slot.home(), dense.detach())

    def _take_nothing(self, slot: Slot) -> None:
        """This rank has no gradient: it sends zeroes."""
        if slot.sparse_dim is not None and self._travels_sparse(slot):
            slot.sparse = _empty_sparse(slot.parameter, slot.sparse_dim)
        else:
            assert slot.segment is not None
            if slot.direct:
                self._vacate(slot)
            slot.segment.bucket.clear(slot.home())

    def _travels_sparse(self, slot: Slot) -> bool:
        assert slot.segment is not None
        return not self._sparse_as_dense and len(slot.segment.slots) == 1

    def _replan_for(self, slot: Slot, gradient: Any) -> None:
        if self._launched or any(other.arrived for other in self._planned):
            raise RuntimeError(f"the gradient of {slot.name} is now {gradient.dtype} of shape {tuple(gradient.shape)} "
                               f"on {gradient.device}, while others of this step are as before; change a model between "
                               "steps and as a whole")
        self._session = None
        self._prepare()

    def _arrive(self, slot: Slot) -> None:
        segment = slot.segment
        assert segment is not None
        if segment.bucket.device is not None:
            segment.streams.append(_cuda.cuda.stream(segment.bucket.device))
        with self._lock:
            slot.arrived = True
            segment.missing -= 1
            if segment.missing:
                return
            self._launched.append(segment)
        self._launch(segment)

    def _launch(self, segment: Segment) -> None:
        only = segment.slots[0] if len(segment.slots) == 1 else None
        bucket = segment.bucket
        if bucket.device is not None:
            _device_buckets.order(bucket.device, segment.streams)
        if only is not None and only.sparse is not None:
            only.pending = self._start_sparse(only)
        elif isinstance(bucket, _device_buckets.Pinned):
            self._copying.append((segment, _cuda.cuda.event(_cuda.cuda.stream(bucket.device))))
        elif self.compression in _CASTS:
            self._submit(segment)
        else:
            for slot in segment.slots:
                slot.pending = self._start_compressed(slot)
        if self._copying:
            self._submit_copied(len(self._launched) == len(self._segments))

    def _submit(self, segment: Segment) -> None:
        segment.op = segment.bucket.allreduce(segment.name, segment.tensor, self.op, self._how, self._session)

    def _submit_copied(self, everything: bool) -> None:
        """Submits what has been copied to the host. `everything`: waits for the copies that are under way."""
        while True:
            try:
                segment, copied = self._copying.popleft()
            except IndexError:
                return
            if everything:
                copied.synchronize()
            elif not copied.query():
                self._copying.appendleft((segment, copied))
                return
            self._submit(segment)

    def _start_sparse(self, slot: Slot) -> Callable[[], Any]:
        """Gathers values and indices. The values go under the name that the dense gradient would have, so a rank that
        does not know that this one is sparse is told instead of waited for."""
        if self.op not in (Average, Sum):
            raise ValueError(f"the gradient of {slot.name} is sparse, and sparse gradients are averaged or summed only; "
                             "use sparse_as_dense=True")
        sparse, process_set = slot.sparse, self._process_set
        values = sparse._values().contiguous()  # pylint: disable=protected-access
        indices = sparse._indices().t().contiguous()  # pylint: disable=protected-access
        gathered_values = engine.start_allgather(values, slot.name, process_set, kind="allreduce")
        gathered_indices = engine.start_allgather(indices, f"{slot.name}.indices", process_set)
        divisor = process_set.size() if self.op == Average else 1

        def finish() -> Any:
            every = collectives.complete(gathered_values)
            return torch.sparse_coo_tensor(collectives.complete(gathered_indices).t(),
                                           every if divisor == 1 else every / divisor, sparse.shape,
                                           device=sparse.device, check_invariants=False)
        return finish

    def _start_compressed(self, slot: Slot) -> Callable[[], Any]:
        """By a compressor of the user's own, which may give anything."""
        small, ctx = self.compression.compress(slot.home())
        small = small.contiguous()
        started = engine.start_allreduce(small, small, self.op, slot.name, *self._scales, self._process_set)
        return lambda: self.compression.decompress(collectives.complete(started), ctx)

    # ---- the end of a step ----

    def _under_way(self) -> bool:
        return bool(self._launched) or any(slot.arrived for slot in self._planned)

    @property
    def outstanding(self) -> bool:
        """Whether gradients have come, and ops were perhaps started, that finish() has not seen."""
        return self._under_way() and _session.is_open() and _session.current() is self._session

    def finish(self) -> None:
        """Every parameter's gradient becomes the reduced one. Waits for the other ranks' finish()."""
        self._prepare()
        new = [slot for slot in self._slots.values() if slot.segment is None and slot.parameter.requires_grad
               and slot.parameter.numel()]
        if new:
            assert self._session is not None
            self._plan(new, self._session)
        try:
            for slot in self._planned:
                if not slot.arrived:
                    self._take(slot)
                    self._arrive(slot)
            self._submit_copied(True)
            for segment in self._launched:
                if segment.op is not None:
                    segment.op.wait()
            for slot in self._planned:
                self._deliver(slot)
            for segment in self._launched:
                segment.bucket.delivered()
        except BaseException:
            self.abandon()
            raise
        self._begin_step()
        if self._leaving:
            self._leave_out()

    def set_passes(self, passes: int) -> None:
        """How many backward passes make a gradient, from now on."""
        self.passes = passes
        for slot in self._slots.values():
            slot.delay = passes

    def _begin_step(self) -> None:
        """All gradients are still to come."""
        for slot in self._slots.values():
            slot.delay = self.passes
            slot.arrived = False
        for segment in self._launched:
            segment.missing = len(segment.slots)
            segment.op = None
        self._launched = []

    def start_alone(self, gradient: Any, name: str) -> tuple[Any, Any]:
        """Starts the reduction of a gradient by itself, in place, outside of the steps. A handle, or a function that
        waits for a sparse one; and what the compressor's decompress() takes."""
        if gradient.is_sparse and not self._sparse_as_dense:
            return mpi_ops.sparse_allreduce_async(gradient, name, self.op, self._process_set), None
        tensor, context = self.compression.compress(gradient.to_dense() if gradient.is_sparse else gradient)
        prescale, postscale = self._scales
        return mpi_ops.allreduce_async_(tensor, name=name, op=self.op, prescale_factor=prescale, postscale_factor=postscale,
                                        process_set=self._process_set), context

    def abandon(self) -> None:
        """Forgets the step that is under way. What the engine may still write is not used again."""
        if self._under_way():
            self._forget_plan()
        self._begin_step()

    # ---- what is sent, and what becomes of the result ----

    def _outgoing(self, slot: Slot) -> Any:
        return slot.parameter.grad

    def _result(self, slot: Slot) -> Any:
        if slot.pending is None:
            return slot.home()
        pending, slot.pending, slot.sparse = slot.pending, None, None
        return pending()

    def _deliver(self, slot: Slot) -> None:
        """The reduced gradient of a slot goes to p.grad."""
        parameter, result = slot.parameter, self._result(slot)
        gradient = parameter.grad
        if gradient is result or (gradient is None and not parameter.requires_grad):
            return  # at home, or frozen: it had none and gets none
        if result.layout is torch.sparse_coo:
            parameter.grad = result
        elif slot.sparse_dim is not None and (gradient is None or gradient.layout is torch.sparse_coo):
            parameter.grad = result.to(parameter).to_sparse(slot.sparse_dim)
        elif slot.direct:
            parameter.grad = slot.home()
            parameter.grad.copy_(result)  # nothing when it is the same
        else:
            if gradient is None or gradient.requires_grad:
                gradient = parameter.grad = torch.empty_like(parameter, requires_grad=False)
            assert slot.segment is not None
            slot.segment.bucket.copy_out(gradient, result)
