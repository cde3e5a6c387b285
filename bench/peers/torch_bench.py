# SPDX-License-Identifier: Apache-2.0
"""One measurement of torch.distributed with gloo, done as hvd-perf does it: every op is clocked on every rank, an
iteration counts as its slowest rank, and the median is the figure. Started by torchrun. Prints one JSON line.

    torch_bench.py OP BYTES|FILE SECONDS [--barrier] [--outstanding K]

OP: allreduce, allgather, broadcast, alltoall, reducescatter; gradients (each tensor of FILE by all_reduce(async_op=True));
ddp (the tensors of FILE copied into buckets of 25 MB, the buckets reduced as they fill, and copied back: what
DistributedDataParallel does); idle (CPU share of the ranks that do nothing for SECONDS)."""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

BUCKET = 25 * 1024 * 1024 // 4
SAMPLES_MOST = 20000


def sizes_of(path: str) -> list[int]:
    """The element counts in a file of sizes."""
    with open(path, encoding="utf-8") as file:
        return [int(line.split()[0]) for line in file if line.strip() and not line.startswith("#")]


class Buckets:
    """Tensors grouped in order into flat buckets of at most 25 MB."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        groups: list[list[torch.Tensor]] = [[]]
        for tensor in tensors:
            if groups[-1] and sum(each.numel() for each in groups[-1]) + tensor.numel() > BUCKET:
                groups.append([])
            groups[-1].append(tensor)
        self.groups = [(torch.zeros(sum(each.numel() for each in group)), group) for group in groups]

    def step(self) -> None:
        """Copy in and start bucket by bucket; wait and copy out."""
        works = []
        for flat, group in self.groups:
            at = 0
            for tensor in group:
                flat[at:at + tensor.numel()].copy_(tensor)
                at += tensor.numel()
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (flat, group) in zip(works, self.groups):
            work.wait()
            at = 0
            for tensor in group:
                tensor.copy_(flat[at:at + tensor.numel()])
                at += tensor.numel()


def reduce_all(tensors: list[torch.Tensor]) -> None:
    """Every tensor by itself, all in flight at a time."""
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


def prepare(args: argparse.Namespace, size: int):
    """The function that runs the op once, its bytes, and a function that says whether the result of ranks that put
    1 + rank everywhere is right."""
    rank = dist.get_rank()
    total = float(sum(range(1, size + 1)))
    mine = 1.0 + rank
    if args.op in ("gradients", "ddp"):
        tensors = [torch.full((count,), mine) for count in sizes_of(args.what)]
        count = sum(tensor.numel() for tensor in tensors)
        run = Buckets(tensors).step if args.op == "ddp" else lambda: reduce_all(tensors)
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


def clocked(run, barrier: bool, iterations: int) -> list[int]:
    """Nanoseconds of each iteration on this rank."""
    times = []
    for _ in range(iterations):
        if barrier:
            dist.barrier()
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return times


def agreed(number: float) -> float:
    """The largest of all ranks' numbers."""
    tensor = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor[0])


def idle(seconds: float) -> float:
    """Per cent of one core that this rank takes while nothing is asked of it."""
    dist.barrier()
    start = time.process_time_ns()
    time.sleep(seconds)
    return (time.process_time_ns() - start) / seconds / 1e7


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("op")
    parser.add_argument("what")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--barrier", action="store_true")
    parser.add_argument("--outstanding", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    if args.op == "idle":
        share = agreed(idle(args.seconds))
        if dist.get_rank() == 0:
            print(json.dumps({"op": "idle", "np": size, "cpu_percent": round(share, 4)}), flush=True)
        dist.destroy_process_group()
        return
    run, size_bytes, right = prepare(args, size)
    run()
    if not right():
        sys.exit("torch_bench: a wrong result")
    looks = 3
    mean = agreed(sum(clocked(run, args.barrier, looks)) / looks)
    looks = min(max(int(0.1e9 / mean), 3), 2000)
    mean = agreed(sum(clocked(run, args.barrier, looks)) / looks)
    iterations = min(max(int(args.seconds * 1e9 / mean), 5), SAMPLES_MOST)
    mine = torch.tensor(clocked(run, args.barrier, iterations), dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        times = sorted(mine.tolist())
        scale = 1e-3 / args.outstanding
        middle = (times[(iterations - 1) // 2] + times[iterations // 2]) / 2
        print(json.dumps({
            "op": args.op, "bytes": size_bytes, "np": size, "time_us": round(middle * scale, 3),
            "time_us_p99": round(times[(iterations * 99 + 99) // 100 - 1] * scale, 3),
            "time_us_min": round(times[0] * scale, 3), "time_us_mean": round(sum(times) / iterations * scale, 3),
            "errors": 0, "iterations": iterations, "outstanding": args.outstanding}), flush=True)
    dist.barrier()
    dist.destroy_process_group()  # a rank that just exits can make the others abort


if __name__ == "__main__":
    main()
