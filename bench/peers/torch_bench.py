# SPDX-License-Identifier: Apache-2.0
"""One measurement of torch.distributed with gloo, as measuring.py does it. Started by torchrun. Prints one JSON line.

    torch_bench.py OP BYTES|FILE SECONDS [--barrier] [--outstanding K]

OP: allreduce, allgather, broadcast, alltoall, reducescatter; gradients (each tensor of FILE by all_reduce(async_op=True));
ddp (the tensors of FILE copied into buckets of 25 MB, the buckets reduced as they fill, and copied back: what
DistributedDataParallel does; with BENCH_GRADIENTS=in-place they live in the buckets: gradient_as_bucket_view); step (training.py under DistributedDataParallel); idle (CPU share of the ranks that do nothing
for SECONDS)."""
import argparse
import os

import measuring  # first: it sets the number of threads

import torch
import torch.distributed as dist

import training

BUCKET = 25 * 1024 * 1024 // 4


class Buckets:
    """Tensors grouped in order into flat buckets of at most 25 MB; `in_place`: they become views of these."""

    def __init__(self, tensors: list[torch.Tensor], in_place: bool) -> None:
        self.in_place = in_place
        groups: list[list[torch.Tensor]] = [[]]
        for tensor in tensors:
            if groups[-1] and sum(each.numel() for each in groups[-1]) + tensor.numel() > BUCKET:
                groups.append([])
            groups[-1].append(tensor)
        self.groups = [(torch.zeros(sum(each.numel() for each in group)), group) for group in groups]
        for flat, group in self.groups:
            for tensor, place in zip(group, self.places(flat, group)):
                place.copy_(tensor)
                if in_place:
                    tensor.data = place

    @staticmethod
    def places(flat: torch.Tensor, group: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of each tensor its part of the bucket."""
        return list(flat.split([tensor.numel() for tensor in group]))

    def step(self) -> None:
        """Copy in and start bucket by bucket; wait and copy out."""
        works = []
        for flat, group in self.groups:
            if not self.in_place:
                for tensor, place in zip(group, self.places(flat, group)):
                    place.copy_(tensor)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (flat, group) in zip(works, self.groups):
            work.wait()
            if not self.in_place:
                for tensor, place in zip(group, self.places(flat, group)):
                    tensor.copy_(place)


def reduce_all(tensors: list[torch.Tensor]) -> None:
    """Every tensor by itself, all in flight at a time."""
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
    """DistributedDataParallel at its best: gradients are views of its buckets."""
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), optimizer


def prepare(args: argparse.Namespace, size: int):
    """The function that runs the op once, its bytes, and a function that says whether the result of ranks that put
    1 + rank everywhere is right."""
    rank = dist.get_rank()
    total = float(sum(range(1, size + 1)))
    mine = 1.0 + rank
    if args.op == "step":
        return training.prepared(rank, size, wrap)
    if args.op in ("gradients", "ddp"):
        tensors = [torch.full((count,), mine) for count in measuring.sizes_of(args.what)]
        count = sum(tensor.numel() for tensor in tensors)
        in_place = os.environ.get("BENCH_GRADIENTS") == "in-place"
        run = Buckets(tensors, in_place).step if args.op == "ddp" else lambda: reduce_all(tensors)
        return run, count * 4, lambda: all(bool((tensor == total).all()) for tensor in tensors)
    count = max(int(args.what) // 4, 1)
    if args.op == "allgather":
        count = max(count // size, 1)
        tensor = torch.full((count,), mine)
        out = torch.zeros(count * size)
        return (lambda: dist.all_gather_into_tensor(out, tensor)), count * size * 4, lambda: all(
            bool((out[r * count:(r + 1) * count] == 1.0 + r).all()) for r in range(size))
    tensor = torch.full((count,), mine)
    if args.op == "allreduce" and args.outstanding > 1:
        many = [torch.full((count,), mine) for _ in range(args.outstanding)]
        return (lambda: reduce_all(many)), count * 4, lambda: all(bool((each == total).all()) for each in many)
    if args.op == "allreduce":
        return (lambda: dist.all_reduce(tensor)), count * 4, lambda: bool((tensor == total).all())
    if args.op == "broadcast":
        return (lambda: dist.broadcast(tensor, 0)), count * 4, lambda: bool((tensor == 1.0).all())
    if args.op == "alltoall":
        out = torch.zeros(count)
        share = count // size
        return (lambda: dist.all_to_all_single(out, tensor)), count * 4, lambda: all(
            bool((out[r * share:(r + 1) * share] == 1.0 + r).all()) for r in range(size))
    if args.op == "reducescatter":
        out = torch.zeros(count // size)
        return (lambda: dist.reduce_scatter_tensor(out, tensor)), count * 4, lambda: bool((out == total).all())
    raise SystemExit(f"torch_bench: what is '{args.op}'?")


def largest(numbers: list[float]) -> list[float]:
    """At each place, of all ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def open_peer() -> measuring.Peer:
    """torch.distributed, started. It is closed in the end: a rank that just exits can make the others abort."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return measuring.Peer("torch_bench", dist.get_rank(), dist.get_world_size(), dist.barrier, largest, prepare,
                          dist.destroy_process_group)


if __name__ == "__main__":
    measuring.main(open_peer)
