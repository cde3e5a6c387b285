# SPDX-License-Identifier: Apache-2.0
"""One measurement of Horovod (PyTorch, Gloo), done as hvd-perf does it: every op is clocked on every rank, an iteration
counts as its slowest rank, and the median is the figure. Started by horovodrun --gloo. Prints one JSON line.

    horovod_bench.py OP BYTES|FILE SECONDS [--barrier] [--outstanding K]

OP: allreduce, allgather, broadcast, alltoall, reducescatter; gradients (each tensor of FILE by allreduce_async_, one by
one, as DistributedOptimizer does it); idle (CPU share of the ranks that do nothing for SECONDS)."""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

SAMPLES_MOST = 20000


def sizes_of(path: str) -> list[int]:
    """The element counts in a file of sizes."""
    with open(path, encoding="utf-8") as file:
        return [int(line.split()[0]) for line in file if line.strip() and not line.startswith("#")]


def reduce_all(tensors: list[torch.Tensor]) -> None:
    """Every tensor by itself, all in flight at a time; Horovod fuses them as it likes."""
    handles = [hvd.allreduce_async_(tensor, name=f"t{i}", op=hvd.Sum) for i, tensor in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def prepare(args: argparse.Namespace, size: int):
    """The function that runs the op once, its bytes, and a function that says whether the result of ranks that put
    1 + rank everywhere is right."""
    total = float(sum(range(1, size + 1)))
    mine = 1.0 + hvd.rank()
    kept: list[torch.Tensor] = [torch.zeros(0)]

    def keep(result: torch.Tensor) -> None:
        kept[0] = result

    if args.op == "gradients":
        tensors = [torch.full((count,), mine) for count in sizes_of(args.what)]
        count = sum(tensor.numel() for tensor in tensors)
        return (lambda: reduce_all(tensors)), count * 4, lambda: all(bool((t == total).all()) for t in tensors)
    count = max(int(args.what) // 4, 1)
    if args.op == "allgather":
        count = max(count // size, 1)
        tensor = torch.full((count,), mine)
        return (lambda: keep(hvd.allgather(tensor, name="t"))), count * size * 4, lambda: all(
            bool((kept[0][r * count:(r + 1) * count] == 1.0 + r).all()) for r in range(size))
    tensor = torch.full((count,), mine)
    if args.op == "allreduce" and args.outstanding > 1:
        many = [torch.full((count,), mine) for _ in range(args.outstanding)]
        return (lambda: reduce_all(many)), count * 4, lambda: all(bool((each == total).all()) for each in many)
    if args.op == "allreduce":
        return (lambda: hvd.allreduce_(tensor, name="t", op=hvd.Sum)), count * 4, lambda: bool((tensor == total).all())
    if args.op == "broadcast":
        return (lambda: hvd.broadcast_(tensor, 0, name="t")), count * 4, lambda: bool((tensor == 1.0).all())
    if args.op == "alltoall":
        share = count // size
        return (lambda: keep(hvd.alltoall(tensor, name="t"))), count * 4, lambda: all(
            bool((kept[0][r * share:(r + 1) * share] == 1.0 + r).all()) for r in range(size))
    if args.op == "reducescatter":
        return (lambda: keep(hvd.reducescatter(tensor, name="t", op=hvd.Sum))), count * 4, lambda: bool(
            (kept[0] == total).all())
    raise SystemExit(f"horovod_bench: what is '{args.op}'?")


def clocked(run, barrier: bool, iterations: int) -> list[int]:
    """Nanoseconds of each iteration on this rank."""
    times = []
    for _ in range(iterations):
        if barrier:
            hvd.barrier()
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return times


def agreed(number: float) -> float:
    """The largest of all ranks' numbers."""
    return float(hvd.allreduce(torch.tensor([number], dtype=torch.float64), name="agreed", op=hvd.Max)[0])


def idle(seconds: float) -> float:
    """Per cent of one core that this rank takes while nothing is asked of it."""
    hvd.barrier()
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
    hvd.init()
    size = hvd.size()
    if args.op == "idle":
        share = agreed(idle(args.seconds))
        if hvd.rank() == 0:
            print(json.dumps({"op": "idle", "np": size, "cpu_percent": round(share, 4)}), flush=True)
        return
    run, size_bytes, right = prepare(args, size)
    run()
    if not right():
        sys.exit("horovod_bench: a wrong result")
    looks = 3
    mean = agreed(sum(clocked(run, args.barrier, looks)) / looks)
    looks = min(max(int(0.1e9 / mean), 3), 2000)
    mean = agreed(sum(clocked(run, args.barrier, looks)) / looks)
    iterations = min(max(int(args.seconds * 1e9 / mean), 5), SAMPLES_MOST)
    mine = torch.tensor(clocked(run, args.barrier, iterations), dtype=torch.float64)
    times = sorted(hvd.allreduce(mine, name="times", op=hvd.Max).tolist())
    if hvd.rank() == 0:
        scale = 1e-3 / args.outstanding
        middle = (times[(iterations - 1) // 2] + times[iterations // 2]) / 2
        print(json.dumps({
            "op": args.op, "bytes": size_bytes, "np": size, "time_us": round(middle * scale, 3),
            "time_us_p99": round(times[(iterations * 99 + 99) // 100 - 1] * scale, 3),
            "time_us_min": round(times[0] * scale, 3), "time_us_mean": round(sum(times) / iterations * scale, 3),
            "errors": 0, "iterations": iterations, "outstanding": args.outstanding}), flush=True)
    hvd.barrier()


if __name__ == "__main__":
    main()
