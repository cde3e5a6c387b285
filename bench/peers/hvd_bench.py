# SPDX-License-Identifier: Apache-2.0
"""One measurement of hvd.torch, as measuring.py does it. Started by hvdrun. Prints one JSON line.

    hvd_bench.py OP BYTES|FILE SECONDS [--barrier]

OP: allreduce; hooks (the gradients of FILE through DistributedOptimizer's hooks, living in its buckets); hooks-fresh (each a
tensor of its own that the hook copies, as after zero_grad(set_to_none=True)); step (training.py); init (of a process that
was attached before, median); cycle (shutdown and init); wait (CPU share of a rank that waits a second for another one in an
allreduce)."""
import argparse
import functools
import json
import sys
import time

import measuring  # first: it sets the number of threads

import torch

import hvd.torch as hvd
import training


def hooks(path: str, fresh: bool) -> measuring.Prepared:
    """Every gradient is there; the hooks are called one by one, as backward does."""
    tensors = [torch.full((count,), 1.0 + hvd.rank()) for count in measuring.sizes_of(path)]
    parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum)
    fire = optimizer._hvd_reducer.hooks()  # pylint: disable=protected-access
    total = float(sum(range(1, hvd.size() + 1)))

    def run_fresh() -> None:
        for parameter, tensor, hook in zip(parameters, tensors, fire):
            parameter.grad = tensor
            hook()
        optimizer.synchronize()

    def run() -> None:
        for hook in fire:
            hook()
        optimizer.synchronize()
    run_fresh()
    right = [bool((parameter.grad == total).all()) for parameter in parameters]
    for parameter in parameters:  # the second time it lives in its bucket
        parameter.grad.fill_(1.0 + hvd.rank())
    run()
    right += [bool((parameter.grad == total).all()) for parameter in parameters]
    for parameter in parameters:
        parameter.grad.zero_()
    return run_fresh if fresh else run, sum(tensor.numel() for tensor in tensors) * 4, lambda: all(right)


def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
    """As its documentation says."""
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def cycle() -> None:
    """Detach and attach."""
    hvd.shutdown()
    hvd.init()


def prepare(args: argparse.Namespace, size: int) -> measuring.Prepared:
    """The function that runs the op once, its bytes, and a function that says whether the result is right."""
    if args.op in ("hooks", "hooks-fresh"):
        return hooks(args.what, args.op == "hooks-fresh")
    if args.op == "step":
        return training.prepared(hvd.rank(), size, wrap)
    if args.op == "cycle":
        return cycle, 0, hvd.is_initialized
    if args.op == "allreduce":
        tensor = torch.full((max(int(args.what) // 4, 1),), 1.0 + hvd.rank())
        total = float(sum(range(1, size + 1)))
        return (lambda: hvd.allreduce_(tensor, name="t", op=hvd.Sum)), tensor.numel() * 4, lambda: bool(
            (tensor == total).all())
    raise SystemExit(f"hvd_bench: what is '{args.op}'?")


def open_peer() -> measuring.Peer:
    """hvd, started."""
    torch.set_num_threads(1)
    return measuring.with_horovods_api("hvd_bench", hvd, functools.partial(torch.tensor, dtype=torch.float64), prepare)


def init(seconds: float) -> dict[str, object]:
    """How long init() takes after a shutdown()."""
    times = []
    for _ in range(max(20, int(seconds * 100))):
        hvd.barrier()
        hvd.shutdown()
        start = time.perf_counter_ns()
        hvd.init()
        times.append(time.perf_counter_ns() - start)
    slowest = hvd.allreduce(torch.tensor(times, dtype=torch.float64), name="largest", op=hvd.Max)
    times = sorted(slowest.tolist())
    return {"op": "init", "np": hvd.size(), "time_us": round(times[len(times) // 2] / 1e3, 1),
            "time_us_p99": round(times[-1 - len(times) // 100] / 1e3, 1), "iterations": len(times)}


def wait() -> dict[str, object]:
    """CPU time of rank 0, all its threads, in an allreduce that the others come to a second later."""
    tensor = torch.ones(1000)
    hvd.allreduce_(tensor, name="t")
    hvd.barrier()
    if hvd.rank() != 0:
        time.sleep(1.0)
    start, began = time.process_time_ns(), time.perf_counter_ns()
    hvd.allreduce_(tensor, name="t")
    used, took = time.process_time_ns() - start, time.perf_counter_ns() - began
    return {"op": "wait", "np": hvd.size(), "cpu_percent": round(100 * used / took, 4)}


def main() -> None:
    """See the module's text."""
    if sys.argv[1] not in ("init", "wait"):
        measuring.main(open_peer)
        return
    hvd.init()
    line = json.dumps(init(float(sys.argv[3])) if sys.argv[1] == "init" else wait())
    if hvd.rank() == 0:
        print(line, flush=True)
    hvd.barrier()


if __name__ == "__main__":
    main()
