# SPDX-License-Identifier: Apache-2.0
"""Every operation of torch.distributed on the backend hvd, beside gloo in the same process group world."""
from __future__ import annotations

import datetime
import itertools
import sys
from typing import Any

import torch
import torch.distributed as dist

import hvd.torch.distributed

TIMEOUT = datetime.timedelta(seconds=60)
MOVED = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool", "complex64",
         "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "float8_e4m3fnuz"]
REDUCED = ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 5), (20000,)]


def types(names: list[str]) -> list[Any]:
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def sample(shape: tuple[int, ...], dtype: Any, seed: int, scattered: bool = False) -> Any:
    """Small whole numbers, so that sums are exact in every type; `scattered`: not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    wide = (*shape, 2) if scattered else shape
    numbers = torch.randint(0, 2 if dtype is torch.bool else 4, wide, generator=generator)
    tensor = numbers.to(torch.float32).to(dtype) if dtype.is_floating_point or dtype.is_complex else numbers.to(dtype)
    return tensor[..., 0] if scattered else tensor


def blank(tensor: Any) -> Any:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def bytes_of(tensor: Any) -> Any:
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)


def same(given: Any, wanted: Any, what: str) -> None:
    assert given.shape == wanted.shape and given.dtype == wanted.dtype, f"{what}: {given} instead of {wanted}"
    assert bool((bytes_of(given) == bytes_of(wanted)).all()), f"{what}: {given} instead of {wanted}"


class Case:
    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size

    def all_of(self, shape: tuple[int, ...], dtype: Any, scattered: bool = False) -> list[Any]:
        """What each rank has."""
        return [sample(shape, dtype, rank, scattered) for rank in range(self.size)]

    def moving(self, dtype: Any, shape: tuple[int, ...], scattered: bool) -> None:
        """The oracle is what everybody is known to have."""
        what = f"{dtype} {shape} scattered={scattered}"
        given = self.all_of(shape, dtype, scattered)
        mine, group, last = given[self.rank], self.group, self.size - 1
        room = mine.clone() if not scattered else sample(shape, dtype, self.rank, True)
        dist.broadcast(room, last, group=group)
        same(room, given[last], "broadcast " + what)
        rooms = [blank(one) for one in given]
        dist.all_gather(rooms, mine, group=group)
        for room, wanted in zip(rooms, given):
            same(room, wanted, "all_gather " + what)
        rooms = [blank(one) for one in given] if self.rank == last else None
        dist.gather(mine, rooms, dst=last, group=group)
        for room, wanted in zip(rooms or (), given):
            same(room, wanted, "gather " + what)
        if shape and hasattr(dist, "gather_single"):
            flat = torch.zeros((self.size * shape[0], *shape[1:]), dtype=dtype) if self.rank == last else None
            dist.gather_single(mine, flat, dst=last, group=group)
            if flat is not None:
                same(flat.reshape(-1).view(torch.uint8), torch.cat([bytes_of(one) for one in given]), "gather_single " + what)
        with torch.inference_mode():
            rooms = [torch.zeros_like(one) for one in given]
            work = dist.all_gather(rooms, mine, group=group, async_op=True)
        work.wait()  # outside
        for room, wanted in zip(rooms, given):
            same(room, wanted, "all_gather in inference mode " + what)
        room = blank(mine)
        dist.scatter(room, given if self.rank == 0 else None, src=0, group=group)
        same(room, given[self.rank], "scatter " + what)
        if not shape:
            return
        flat = torch.zeros((self.size * shape[0], *shape[1:]), dtype=dtype)
        dist.all_gather_into_tensor(flat, mine, group=group)
        same(flat.reshape(-1).view(torch.uint8), torch.cat([bytes_of(one) for one in given]), "all_gather_into " + what)
        flat.zero_()
        own = flat[self.rank * shape[0]:(self.rank + 1) * shape[0]]
        own.copy_(mine)
        dist.all_gather_into_tensor(flat, own, group=group)
        same(flat.reshape(-1).view(torch.uint8), torch.cat([bytes_of(one) for one in given]), "in place, " + what)
        rooms = [blank(mine) for _ in range(self.size)]
        dist.all_to_all(rooms, [sample(shape, dtype, 100 * self.rank + to, scattered) for to in range(self.size)],
                        group=group)
        for member, room in enumerate(rooms):
            same(room, sample(shape, dtype, 100 * member + self.rank, scattered), "all_to_all " + what)

    def reductions(self, oracle: Any, dtype: Any, shape: tuple[int, ...], scattered: bool) -> None:
        """Exact whole numbers: gloo's results, bit for bit."""
        ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        if not dtype.is_floating_point:
            ops += [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
        for op in ops:
            what = f"{op} {dtype} {shape} scattered={scattered}"
            results = []
            for group in (self.group, oracle):
                room = sample(shape, dtype, self.rank, scattered)
                if group is oracle and (scattered or dtype is torch.bfloat16):
                    room = room.contiguous().to(torch.float32 if dtype is torch.bfloat16 else dtype)
                dist.all_reduce(room, op, group=group)
                results.append(room.to(dtype))
            same(results[0], results[1], "all_reduce " + what)
            room = sample(shape, dtype, self.rank, scattered)
            dist.reduce(room, self.size - 1, op, group=self.group)
            same(room, results[1] if self.rank == self.size - 1 else sample(shape, dtype, self.rank, scattered),
                 "reduce " + what)
            parts = [sample(shape, dtype, self.rank + member, scattered) for member in range(self.size)]
            room = blank(parts[0])
            dist.reduce_scatter(room, parts, op, group=self.group)
            wanted = sample(shape, dtype, self.rank).to(torch.float32 if dtype is torch.bfloat16 else dtype)
            rows = [sample(shape, dtype, member + self.rank, scattered).contiguous() for member in range(self.size)]
            wanted = rows[0].to(wanted.dtype)
            for row in rows[1:]:
                wanted = _APPLY[op](wanted, row.to(wanted.dtype))
            same(room, wanted.to(dtype), "reduce_scatter " + what)
            if shape:
                joint = torch.cat([part.contiguous() for part in parts])
                room = blank(parts[0])
                dist.reduce_scatter_tensor(room, joint, op, group=self.group)
                same(room, wanted.to(dtype), "reduce_scatter_tensor " + what)
                own = joint[self.rank * shape[0]:(self.rank + 1) * shape[0]]
                dist.reduce_scatter_tensor(own, joint, op, group=self.group)
                same(own, wanted.to(dtype), "reduce_scatter_tensor in place " + what)

    def special_reductions(self) -> None:
        """AVG, PREMUL_SUM, complex, bool, and what is refused."""
        room = torch.full((4,), float(self.rank))
        dist.all_reduce(room, dist.ReduceOp.AVG, group=self.group)
        same(room, torch.full((4,), (self.size - 1) / 2), "AVG")
        from torch._C._distributed_c10d import _make_nccl_premul_sum  # pylint: disable=import-outside-toplevel
        room = torch.full((4,), 3.0)
        dist.all_reduce(room, _make_nccl_premul_sum(0.5), group=self.group)
        same(room, torch.full((4,), 1.5 * self.size), "PREMUL_SUM")
        room = torch.full((2,), 1 + 2j, dtype=torch.complex64)
        dist.all_reduce(room, group=self.group)
        same(room, torch.full((2,), self.size * (1 + 2j), dtype=torch.complex64), "complex SUM")
        for op, wanted in ((dist.ReduceOp.BAND, self.size == 1), (dist.ReduceOp.BOR, True), (dist.ReduceOp.MIN, self.size == 1),
                           (dist.ReduceOp.SUM, True), (dist.ReduceOp.PRODUCT, self.size == 1)):
            room = torch.tensor([self.rank == 0])
            dist.all_reduce(room, op, group=self.group)
            assert bool(room) == wanted
        refused = [(torch.ones(1, dtype=torch.complex64), dist.ReduceOp.MAX), (torch.ones(1), dist.ReduceOp.BAND),
                   (torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG), (torch.ones(1, device="meta"), dist.ReduceOp.SUM)]
        for tensor, op in refused:
            try:
                dist.all_reduce(tensor, op, group=self.group)
            except (ValueError, RuntimeError):
                continue
            raise AssertionError(f"{op} of {tensor.dtype} was not refused")

    def sparse_sums(self) -> None:
        """Of COO tensors with other indices on each rank, which may come twice; elements of one number and of a row."""
        for tail, dtype in (((), torch.float32), ((2,), torch.float64)):
            given = [torch.sparse_coo_tensor(torch.tensor([[0, rank, rank], [1, 0, 0]]), torch.ones((3, *tail), dtype=dtype),
                                             (self.size, 2, *tail), check_invariants=False) for rank in range(self.size)]
            wanted = sum(one.to_dense() for one in given)
            room = given[self.rank].clone()
            dist.all_reduce(room, group=self.group)
            assert room.is_coalesced()
            same(room.to_dense(), wanted, f"sparse {dtype}")
            room = given[self.rank].clone()
            result, = dist.all_reduce(room, async_op=True, group=self.group).get_future().wait()
            assert result is room
            same(result.to_dense(), wanted, f"sparse {dtype}, future")
        none = torch.zeros(2, 3).to_sparse()
        dist.all_reduce(none, group=self.group)
        assert none._nnz() == 0  # pylint: disable=protected-access
        try:
            dist.all_reduce(torch.zeros(2, 3).to_sparse(), dist.ReduceOp.MAX, group=self.group)
        except ValueError as error:
            assert "ReduceOp.MAX of sparse tensors is not known" in str(error), error
        else:
            raise AssertionError("MAX of sparse tensors was not refused")
        if self.size == 1:
            return
        try:
            dist.all_reduce(torch.zeros((2, 3) if self.rank else (2,)).to_sparse(), group=self.group)
        except RuntimeError as error:
            assert f"group rank {0 if self.rank else 1} has another one" in str(error), error
        else:
            raise AssertionError("other shapes of sparse tensors were not told")

    def short_forms(self) -> None:
        """A tensor for a list of one, and what stands for the options."""
        group, last, rows = self.group, self.size - 1, [torch.full((2, 1), float(member)) for member in range(self.size)]
        mine = rows[self.rank]
        room = torch.ones(1, 2)
        result, = group.allreduce(room, dist.ReduceOp.MAX).get_future().wait()
        assert result is room
        group.allreduce(room, op=dist.ReduceOp.SUM, timeout=TIMEOUT).wait()
        same(room, torch.full((1, 2), float(self.size)), "allreduce")
        room = mine.clone()
        group.broadcast(room, last).wait()
        same(room, rows[last], "broadcast")
        group.reduce(room, root=last).wait()
        same(room, rows[last] * (self.size if self.rank == last else 1), "reduce")
        rooms = [torch.zeros(2, 1) for _ in rows]
        group.allgather(rooms, mine).wait()
        same(torch.cat(rooms), torch.cat(rows), "allgather")
        group.scatter(room, rows if self.rank == last else [], last, TIMEOUT).wait()
        same(room, mine, "scatter")
        rooms = [torch.zeros(2, 1) for _ in rows] if self.rank == last else []
        group.gather(rooms, mine, root=last).wait()
        assert self.rank != last or torch.equal(torch.cat(rooms), torch.cat(rows))
        group.reduce_scatter(room, rows, dist.ReduceOp.SUM).wait()
        same(room, mine * self.size, "reduce_scatter")
        group.barrier(timeout=TIMEOUT).wait()
        for wrong in (lambda: group.broadcast(room, root=self.size), lambda: group.reduce(room, root=-1),
                      lambda: dist.gather(room, [room] * self.size, self.size), lambda: dist.scatter(room, [], -1),
                      lambda: dist.isend(room, -1), lambda: dist.irecv(room, self.size)):
            try:
                wrong()
            except ValueError:
                continue
            raise AssertionError("a rank that the group has not was not refused")

    def splits(self) -> None:
        """all_to_all_single with uneven rows, and what does not fit."""
        given = [(self.rank + to) % 3 for to in range(self.size)]
        taken = [(self.rank + member) % 3 for member in range(self.size)]
        rows = torch.full((sum(given), 2), float(self.rank))
        room = torch.zeros(sum(taken), 2)
        dist.all_to_all_single(room, rows, taken, given, group=self.group)
        same(room, torch.cat([torch.full((count, 2), float(member)) for member, count in enumerate(taken)]), "splits")
        parts = [torch.full((member, 2), 1.0 + self.rank) for member in range(self.size)]
        room = torch.zeros(self.rank, 2)
        dist.reduce_scatter(room, parts, group=self.group)
        same(room, torch.full((self.rank, 2), self.size * (self.size + 1) / 2), "reduce_scatter of unequal parts")
        room = torch.zeros(self.size, dtype=torch.int64)
        dist.all_to_all_single(room, torch.arange(self.size) + 10 * self.rank, group=self.group)
        same(room, torch.arange(self.size) * 10 + self.rank, "equal parts")
        refused: list[tuple[int, Any]] = [(self.size, [1] * (self.size + 1)), (self.size, [2] * self.size)]
        for count, parts in refused + [(self.size + 1, None)] * (self.size > 1):
            try:
                dist.all_to_all_single(torch.zeros(count), torch.zeros(count), parts, parts, group=self.group)
            except (ValueError, RuntimeError):
                continue
            raise AssertionError(f"{count} rows in parts of {parts} were not refused")

    def coalesced(self) -> None:
        """Many at once, more than a group takes."""
        many = [torch.full((place % 3,), float(place)) for place in range(1500)]
        self.group.allreduce_coalesced(many).wait()
        for place, room in enumerate(many):
            same(room, torch.full((place % 3,), float(place * self.size)), f"coalesced {place}")
        inputs = [torch.full((count,), float(self.rank)) for count in (1, 3)]
        outputs = [torch.zeros(self.size * count) for count in (1, 3)]
        self.group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        for count, room in zip((1, 3), outputs):
            same(room, torch.arange(self.size).float().repeat_interleave(count), "all_gather coalesced")
        lists = [[torch.zeros(1), torch.zeros(3)] for _ in range(self.size)]
        self.group.allgather_coalesced(lists, inputs).wait()
        for member, targets in enumerate(lists):
            for count, room in zip((1, 3), targets):
                same(room, torch.full((count,), float(member)), "all_gather_coalesced")
        parts = [torch.ones(self.size * count) for count in (2, 4)]
        rooms = [torch.zeros(count) for count in (2, 4)]
        self.group.reduce_scatter_tensor_coalesced(rooms, parts).wait()
        for count, room in zip((2, 4), rooms):
            same(room, torch.full((count,), float(self.size)), "reduce_scatter coalesced")

    def works(self) -> None:
        """Handles and futures."""
        room = torch.ones(5)
        work = dist.all_reduce(room, async_op=True, group=self.group)
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
        same(work.result()[0], torch.full((5,), float(self.size)), "result")
        future = dist.all_reduce(room, async_op=True, group=self.group).get_future()
        twice = future.then(lambda done: done.value()[0] * 2)
        same(twice.wait(), torch.full((5,), 2.0 * self.size ** 2), "then")
        works = [dist.all_reduce(torch.full((3,), float(number)), async_op=True, group=self.group) for number in range(50)]
        futures = [work.get_future() for work in works[::2]]
        for number, work in reversed(list(enumerate(works))):
            work.wait()
            same(work.result()[0], torch.full((3,), float(number * self.size)), "many")
        for future in futures:
            future.wait()
        dist.barrier(group=self.group)
        dist.barrier(group=self.group, async_op=True).wait()
        objects: list[Any] = [None] * self.size
        dist.all_gather_object(objects, {"rank": self.rank}, group=self.group)
        assert objects == [{"rank": rank} for rank in range(self.size)]

    def point_to_point(self) -> None:
        """Rings, tags, batches, any source."""
        if self.size == 1:
            return
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for dtype, scattered in itertools.product(types(MOVED), (False, True)):
            rooms = [sample((6,), dtype, 9, scattered) for _ in range(2)]
            works = [dist.isend(sample((6,), dtype, self.rank + tag, scattered), after, tag=tag, group=self.group)
                     for tag in (0, 1)]
            works += [dist.irecv(rooms[tag], before, tag=tag, group=self.group) for tag in (1, 0)]
            for work in works:
                work.wait()
            for tag, room in enumerate(rooms):
                same(room, sample((6,), dtype, before + tag, scattered), f"ring {dtype} {tag}")
        room = torch.zeros(300000)
        batch = [dist.P2POp(dist.isend, torch.full((300000,), float(self.rank)), after, self.group),
                 dist.P2POp(dist.irecv, room, before, self.group)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        same(room, torch.full((300000,), float(before)), "batch")
        if self.rank == 0:
            seen = set()
            for _ in range(1, self.size):
                room = torch.zeros(1)
                seen.add(dist.recv(room, tag=3, group=self.group))
                assert int(room) in seen
            assert seen == set(range(1, self.size))
        else:
            dist.send(torch.tensor([float(self.rank)]), 0, tag=3, group=self.group)
        try:
            dist.send(torch.zeros(1), self.rank, group=self.group)
        except (ValueError, RuntimeError):
            return
        raise AssertionError("a send to oneself was not refused")

    def mismatches(self) -> None:
        """Told to both ends, and the group goes on."""
        if self.size == 1:
            return
        try:
            if self.rank == 0:
                dist.send(torch.zeros(3), 1, group=self.group)
            elif self.rank == 1:
                dist.recv(torch.zeros(4), 0, group=self.group)
        except RuntimeError as error:
            assert "rank 0 said 3; rank 1 said 4" in str(error), error
            assert isinstance(error, hvd.torch.distributed.DistributedError)
        else:
            assert self.rank > 1
        try:
            dist.all_reduce(torch.zeros(3 + (self.rank == 0)), group=self.group)
        except RuntimeError as error:
            assert "ranks disagree on shape" in str(error), error
        else:
            raise AssertionError("a mismatch was not told")
        future = self.group.allreduce([torch.zeros(3 + (self.rank == 0))]).get_future()
        try:
            future.wait()
        except RuntimeError as error:
            assert "ranks disagree on shape" in str(error), error
        else:
            raise AssertionError("a future does not know of the mismatch")

    def timeouts(self) -> None:
        """A wait ends; the work goes on."""
        if self.size == 1:
            return
        room = torch.zeros(1)
        if self.rank == 0:
            work = dist.irecv(room, 1, tag=8, group=self.group)
            try:
                work.wait(datetime.timedelta(seconds=0.05))
            except RuntimeError as error:
                assert "recv: not finished after 0.05 s" in str(error), error
            else:
                raise AssertionError("the wait did not end")
            assert not work.is_completed()
            try:
                self.group.monitored_barrier(datetime.timedelta(seconds=0.05), True)
            except RuntimeError as error:
                names = ", ".join(str(rank) for rank in range(1, self.size))
                assert f"{names} did not call it within 0.05 s" in str(error), error
            else:
                raise AssertionError("monitored_barrier passed")
        dist.barrier(group=self.group)
        if self.rank == 1:
            dist.send(torch.ones(1), 0, tag=8, group=self.group)
        if self.rank == 0:
            work.wait()
            assert float(room) == 1


_APPLY = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.PRODUCT: torch.mul, dist.ReduceOp.MIN: torch.minimum,
          dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or,
          dist.ReduceOp.BXOR: torch.bitwise_xor}


def subgroups(rank: int, size: int) -> None:
    """Groups of some ranks, of all, and of the same ones twice; each with ops of its own."""
    groups = [(ranks, dist.new_group(ranks)) for ranks in
              ([0], [size - 1], list(range(0, size, 2)), list(range(0, size, 2)), list(range(size)))]
    for number, (ranks, group) in enumerate(groups):
        if rank not in ranks:
            continue
        room = torch.full((4,), float(rank))
        dist.all_reduce(room, group=group)
        same(room, torch.full((4,), float(sum(ranks))), f"group {number}")
        rooms = [torch.zeros(1) for _ in ranks]
        dist.all_gather(rooms, torch.full((1,), float(rank)), group=group)
        assert [int(one) for one in rooms] == ranks
        dist.broadcast(room, ranks[-1], group=group)
        if len(ranks) > 1 and rank in ranks[:2]:
            if rank == ranks[0]:
                dist.send(torch.ones(1), ranks[1], group=group)
            else:
                dist.recv(room[:1], ranks[0], group=group)
    dist.barrier()
    for _, group in groups[::2]:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()


def main() -> None:
    dist.init_process_group("hvd", timeout=TIMEOUT)
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "hvd"
    oracle = dist.new_group(backend="gloo", timeout=TIMEOUT)
    case = Case(dist.group.WORLD, rank, size)
    for dtype, shape, scattered in itertools.product(types(MOVED), SHAPES, (False, True)):
        case.moving(dtype, shape, scattered)
    for dtype, shape, scattered in itertools.product(types(REDUCED), SHAPES[1:], (False, True)):
        case.reductions(oracle, dtype, shape, scattered)
    for check in (case.special_reductions, case.sparse_sums, case.short_forms, case.splits, case.coalesced, case.works,
                  case.point_to_point, case.mismatches, case.timeouts):
        check()
    subgroups(rank, size)
    dist.destroy_process_group()
    if hasattr(dist.ProcessGroup, "shutdown"):  # older torch ends a group with the last reference to it
        assert not hvd.is_initialized()
    print(f"rank {rank} of {size}: all is well")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
