# SPDX-License-Identifier: Apache-2.0
"""Ordinary FSDP scripts, FullyShardedDataParallel and fully_shard, on CPU tensors; the backend is the only argument. Rank 0
prints the losses, to the bit."""
from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # older torch
    fully_shard = None

if sys.argv[1] == "hvd":
    import hvd.torch  # noqa: F401 pylint: disable=unused-import


def build() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
                                 for _ in range(3)), torch.nn.Linear(32, 1))


def shard(model: Any) -> Any:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model: Any) -> list[float]:
    """Six steps on data of this rank."""
    torch.manual_seed(100 + dist.get_rank())
    data, target = torch.randn(16, 32), torch.randn(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = ((model(data) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


dist.init_process_group(sys.argv[1])
results = [train(FullyShardedDataParallel(build(), device_id=torch.device("cpu")))]
if fully_shard is not None:
    results.append(train(shard(build())))
if dist.get_rank() == 0:
    for number, result in enumerate(results):
        print(f"losses {number}:", " ".join(value.hex() for value in result))
dist.destroy_process_group()
