# SPDX-License-Identifier: Apache-2.0
"""One measurement of Horovod (PyTorch, Gloo), as measuring.py does it. Started by horovodrun --gloo. Prints one
JSON line.

    horovod_bench.py OP BYTES|FILE SECONDS [--barrier] [--outstanding K]

OP: allreduce, allgather, broadcast, alltoall, reducescatter; gradients (each tensor of FILE by allreduce_async_, one by
one, as DistributedOptimizer does it); step (training.py with DistributedOptimizer); idle (CPU share of the ranks that do
nothing for SECONDS)."""
import argparse
import functools

import measuring  # first: it sets the number of threads

import horovod.torch as hvd
import torch

import training


def reduce_all(tensors: list[torch.Tensor]) -> None:
    """Every tensor by itself, all in flight at a time; Horovod fuses them as it likes."""
    handles = [hvd.allreduce_async_(tensor, name=f"t{i}", op=hvd.Sum) for i, tensor in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
    """As its documentation says."""
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def prepare(args: argparse.Namespace, size: int):
    """The function that runs the op once, its bytes, and a function that says whether the result of ranks that put
    1 + rank everywhere is right."""
    total = float(sum(range(1, size + 1)))
    mine = 1.0 + hvd.rank()
    kept: list[torch.Tensor] = [torch.zeros(0)]

    def keep(result: torch.Tensor) -> None:
        kept[0] = result

    if args.op == "step":
        return training.prepared(hvd.rank(), size, wrap)
    if args.op == "gradients":
        tensors = [torch.full((count,), mine) for count in measuring.sizes_of(args.what)]
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


def open_peer() -> measuring.Peer:
    """Horovod, started."""
    torch.set_num_threads(1)
    return measuring.with_horovods_api("horovod_bench", hvd, functools.partial(torch.tensor, dtype=torch.float64), prepare)


if __name__ == "__main__":
    measuring.main(open_peer)
