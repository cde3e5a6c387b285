# SPDX-License-Identifier: Apache-2.0
"""One rank of gpu.py's training measure: steps of ResNet-50 on a GPU, started by hvdrun. Rank 0 prints figures as hvd-gpu-bench does.

    gpu_train.py [--steps N] [--batch N] [--side PIXELS] [--types fp32,bf16] [--ways apart,ddp,hvd] [--device cuda|cpu]

apart: every rank trains for itself, all at once, which share the GPU and exchange nothing: no library can be faster. ddp: torch's
DistributedDataParallel over NCCL in the process (np 1 alone: NCCL takes no GPU twice). hvd: hvd.torch.DistributedOptimizer.

Before hvd is timed, averaged gradients are compared with those that the ranks have made by themselves; behind the steps, the
parameters of all ranks must be alike to the bit, and so their losses on one batch alike.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import hvd.torch as hvd

WARM_STEPS = 5
CLASSES = 1000


class Bottleneck(nn.Module):
    """Three convolutions around which the input goes, too."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, before, H, W) -> (N, 4 * width, H / stride, W / stride)."""
        return F.relu(self.body(images) + self.short(images))


def resnet50() -> nn.Module:
    """25.6 million parameters in 161 tensors, as torchvision's."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                               nn.MaxPool2d(3, stride=2, padding=1)]
    before = 64
    for number, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(before, 64 << number, 2 if number and not block else 1))
            before = 256 << number
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def figure(name: str, value: float, unit: str) -> None:
    """A line of rank 0."""
    if hvd.rank() == 0:
        print(json.dumps({"figure": name, "value": round(value, 4), "unit": unit}), flush=True)


class Training:
    """A model with its optimizer and this rank's batch."""

    def __init__(self, options: argparse.Namespace, kind: str) -> None:
        self.device, self.kind = options.device, kind
        torch.manual_seed(hvd.rank())  # ranks begin differently: the broadcast makes them alike
        self.plain = resnet50().to(self.device)
        self.model: nn.Module = self.plain
        self.optimizer: Any = torch.optim.SGD(self.plain.parameters(), lr=0.001, momentum=0.9)
        self.images = torch.randn(options.batch, 3, options.side, options.side, device=self.device)
        self.labels = torch.randint(0, CLASSES, (options.batch,), device=self.device)

    def _cast(self) -> Any:
        return torch.autocast(self.device, dtype=torch.bfloat16) if self.kind == "bf16" else contextlib.nullcontext()

    def loss(self) -> torch.Tensor:
        """Of this rank's batch."""
        with self._cast():
            return F.cross_entropy(self.model(self.images), self.labels)

    def step(self) -> None:
        """As users write it."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def with_hvd(training: Training) -> None:
    """As hvd's documentation says."""
    training.optimizer = hvd.DistributedOptimizer(training.optimizer, named_parameters=training.plain.named_parameters())
    hvd.broadcast_parameters(training.plain.state_dict(), root_rank=0)


def with_ddp(training: Training) -> None:
    """At its best: gradients are views of its buckets."""
    if not dist.is_initialized():
        # NCCL looks into the store at the first collective only, so it must last.
        dist.init_process_group("nccl" if training.device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1,
                                timeout=datetime.timedelta(seconds=20))
    training.model = nn.parallel.DistributedDataParallel(training.plain, gradient_as_bucket_view=True)


def check_gradients(training: Training) -> None:
    """The average that comes back is that of the gradients which the ranks have made. BatchNorm and atomics of cuDNN: not to the bit."""
    last = list(training.plain.parameters())[-2:]
    own = [each.detach().float().cpu() for each in torch.autograd.grad(training.loss(), last)]
    wanted = [hvd.allreduce(each, op=hvd.Average, name=f"check.{number}") for number, each in enumerate(own)]
    training.optimizer.zero_grad()
    training.loss().backward()
    training.optimizer.synchronize()
    for want, each in zip(wanted, last):
        got = each.grad.float().cpu()
        worst = float((got - want).abs().max())
        if not worst <= 0.02 * float(want.abs().max()):
            raise SystemExit(f"gpu_train: a wrong result: averaged gradients differ by {worst} of {float(want.abs().max())}")
    with training.optimizer.skip_synchronize():
        training.optimizer.step()


def check_ranks(training: Training) -> None:
    """Parameters and losses of the ranks are alike."""
    flat = torch.cat([each.detach().reshape(-1) for each in training.plain.parameters()]).cpu()
    first = hvd.broadcast(flat, root_rank=0, name="check.parameters")
    hvd.broadcast_(training.images, root_rank=0, name="check.images")
    hvd.broadcast_(training.labels, root_rank=0, name="check.labels")
    with torch.no_grad():
        losses = hvd.allgather(training.loss().detach().float().reshape(1).cpu(), name="check.losses")
    different = hvd.allreduce(torch.tensor([float((flat != first).sum())]), op=hvd.Max, name="check.different").item()
    spread = float(losses.max() - losses.min())
    if different or not spread <= 1e-3 * max(1.0, float(losses.abs().max())):
        raise SystemExit(f"gpu_train: a wrong result: {different} parameters differ between ranks, losses {losses.tolist()}")


def settle(device: str) -> None:
    """The device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(step: Callable[[], None], steps: int, device: str) -> float:
    """Seconds of a step on the slowest rank."""
    for _ in range(WARM_STEPS):
        step()
    settle(device)
    hvd.barrier()
    since = time.perf_counter()
    for _ in range(steps):
        step()
    settle(device)
    took = (time.perf_counter() - since) / steps
    return float(hvd.allreduce(torch.tensor([took], dtype=torch.float64), op=hvd.Max, name="took").item())


def measure(options: argparse.Namespace, kind: str, way: str) -> None:
    """One way of training in one type."""
    training = Training(options, kind)
    if way == "hvd":
        with_hvd(training)
        check_gradients(training)
    elif way == "ddp":
        with_ddp(training)
    took = timed(training.step, options.steps, options.device)
    if way == "hvd":
        check_ranks(training)
    figure(f"{way}_{kind}", took * 1e3, "ms")
    figure(f"{way}_{kind}_rate", hvd.size() * options.batch / took, "img/s")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--types", default="fp32,bf16")
    parser.add_argument("--ways", default="apart,hvd")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    hvd.init()
    if options.device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    for kind in options.types.split(","):
        for way in options.ways.split(","):
            try:
                measure(options, kind, way)
            except RuntimeError as error:
                if way != "ddp":
                    raise
                print(json.dumps({"note": f"ddp: {error}".splitlines()[0]}), flush=True)  # a peer that cannot run ends nothing
    if dist.is_initialized():
        dist.destroy_process_group()
    figure("bytes", sum(each.numel() for each in resnet50().parameters()) * 4, "B")
    hvd.barrier()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    main()
