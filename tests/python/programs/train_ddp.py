# SPDX-License-Identifier: Apache-2.0
"""An ordinary DistributedDataParallel script; the backend is its only argument. Rank 0 prints the losses, to the bit."""
from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

if sys.argv[1] == "hvd":
    import hvd.torch  # noqa: F401 pylint: disable=unused-import


def train(hook: bool, **options: object) -> list[float]:
    """Ten steps on data of this rank."""
    torch.manual_seed(1 + dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.BatchNorm1d(400),
                                torch.nn.Linear(400, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    data, labels = torch.randn(64, 20), torch.randint(0, 3, (64,))
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.25, **options)
    if hook:
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(10):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if step == 4:  # accumulates
            with parallel.no_sync():
                torch.nn.functional.cross_entropy(parallel(data), labels).backward()
        loss = torch.nn.functional.cross_entropy(parallel(data), labels)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item() / dist.get_world_size())
    return losses


def train_unevenly() -> list[float]:
    """Rank 1 has a step more, and the gradients of the embedding are sparse. The profiler sees sums, whoever makes them."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses = []
    with torch.autograd.profiler.profile() as seen, parallel.join(divide_by_initial_world_size=False):
        for step in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            loss = parallel(torch.tensor([step, step + 1 + dist.get_rank()])).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert any(event.name == f"{sys.argv[1]}:all_reduce" for event in seen.function_events)
    return losses + [float(parameter.detach().sum()) for parameter in model.parameters()]


dist.init_process_group(sys.argv[1])
for number, arguments in enumerate(({"hook": False}, {"hook": False, "gradient_as_bucket_view": True}, {"hook": True},
                                    {"hook": False, "find_unused_parameters": True}, {"hook": False, "static_graph": True})):
    result = train(**arguments)
    if dist.get_rank() == 0:
        print(f"losses {number}:", " ".join(value.hex() for value in result))
result = train_unevenly()
if dist.get_rank() == 0:
    print("losses of uneven inputs:", " ".join(value.hex() for value in result))
dist.destroy_process_group()
