# SPDX-License-Identifier: Apache-2.0
"""How a peer in Python is measured, as hvd-perf does it: every op is clocked on every rank, an iteration counts as its
slowest rank, and the median is the figure. The other *_bench.py say what is called."""
import argparse
import dataclasses
import json
import os
import sys
import time
from typing import Any, Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

SAMPLES_MOST = 20000

# Runs the op once; the bytes of it; whether the results of the last run are right.
Prepared = tuple[Callable[[], object], int, Callable[[], bool]]


@dataclasses.dataclass
class Peer:
    """A library as one rank sees it. Every call but `prepare` and `close` is collective."""

    name: str
    rank: int
    size: int
    barrier: Callable[[], object]
    largest: Callable[[list[float]], list[float]]  # at each place, of all ranks' lists
    prepare: Callable[[argparse.Namespace, int], Prepared]  # from .op, .what, .outstanding and the size
    close: Callable[[], object] = lambda: None


class Loop:
    """An op that a framework's own loop repeats: `times(n)` gives the nanoseconds of each of n iterations."""

    def __init__(self, times: Callable[[int], list[int]]) -> None:
        self.times = times

    def __call__(self) -> None:
        self.times(1)


def with_horovods_api(name: str, hvd: Any, tensor_of: Callable[[list[float]], Any],
                      prepare: Callable[[argparse.Namespace, int], Prepared]) -> Peer:
    """A library that has Horovod's functions for tensors as `tensor_of` makes them, started."""
    hvd.init()

    def largest(numbers: list[float]) -> list[float]:
        return hvd.allreduce(tensor_of(numbers), name="largest", op=hvd.Max).numpy().tolist()

    def barrier() -> None:  # Horovod has none for TensorFlow
        hvd.allreduce(tensor_of([0.0]), name="barrier")
    return Peer(name, hvd.rank(), hvd.size(), getattr(hvd, "barrier", barrier), largest, prepare)


def sizes_of(path: str) -> list[int]:
    """The element counts in a file of sizes."""
    with open(path, encoding="utf-8") as file:
        return [int(line.split()[0]) for line in file if line.strip() and not line.startswith("#")]


def clocked(peer: Peer, run: Callable[[], object], barrier: bool, iterations: int) -> list[int]:
    """Nanoseconds of each iteration on this rank."""
    if isinstance(run, Loop):
        return run.times(iterations)
    times = []
    for _ in range(iterations):
        if barrier:
            peer.barrier()
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return times


def idle(peer: Peer, seconds: float) -> float:
    """Per cent of one core that this rank takes while nothing is asked of it."""
    peer.barrier()
    start = time.process_time_ns()
    time.sleep(seconds)
    return (time.process_time_ns() - start) / seconds / 1e7


def slowest(peer: Peer, args: argparse.Namespace, run: Callable[[], object]) -> list[float]:
    """Nanoseconds of as many iterations as fit into the time, each on its slowest rank, in ascending order."""
    iterations = 3
    for seconds, least, most in ((0.1, 3, 2000), (args.seconds, 5, SAMPLES_MOST)):
        mean = peer.largest([sum(clocked(peer, run, args.barrier, iterations)) / iterations])[0]
        iterations = min(max(int(seconds * 1e9 / mean), least), most)
    return sorted(peer.largest(clocked(peer, run, args.barrier, iterations)))


def figures(peer: Peer, args: argparse.Namespace) -> dict[str, object]:
    """What is printed. Exits if a result is wrong."""
    if args.op == "idle":
        return {"op": "idle", "np": peer.size, "cpu_percent": round(peer.largest([idle(peer, args.seconds)])[0], 4)}
    run, size_bytes, right = peer.prepare(args, peer.size)
    run()
    if not right():
        sys.exit(f"{peer.name}: a wrong result")
    times = slowest(peer, args, run)
    iterations = len(times)
    scale = 1e-3 / args.outstanding
    middle = (times[(iterations - 1) // 2] + times[iterations // 2]) / 2
    return {
        "op": args.op, "bytes": size_bytes, "np": peer.size, "time_us": round(middle * scale, 3),
        "time_us_p99": round(times[(iterations * 99 + 99) // 100 - 1] * scale, 3),
        "time_us_min": round(times[0] * scale, 3), "time_us_mean": round(sum(times) / iterations * scale, 3),
        "errors": 0, "iterations": iterations, "outstanding": args.outstanding}


def take_a_core() -> None:
    """With BENCH_CORE_EACH=1 a rank has a core of its own, or its turn of one."""
    rank = next((os.environ[name] for name in ("LOCAL_RANK", "HOROVOD_LOCAL_RANK") if name in os.environ), None)
    if os.environ.get("BENCH_CORE_EACH") and rank is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})


def main(open_peer: Callable[[], Peer]) -> None:
    """Measures what the command line asks for and prints one JSON line on rank 0."""
    take_a_core()
    parser = argparse.ArgumentParser()
    parser.add_argument("op")
    parser.add_argument("what")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--barrier", action="store_true")
    parser.add_argument("--outstanding", type=int, default=1)
    args = parser.parse_args()
    peer = open_peer()
    line = json.dumps(figures(peer, args))
    if peer.rank == 0:
        print(line, flush=True)
    peer.barrier()
    peer.close()
