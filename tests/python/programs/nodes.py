# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on two nodes of two ranks each: groups within a node and across, sends, and a mesh of 2 x 2."""
from __future__ import annotations

import datetime
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import hvd.torch.distributed

TIMEOUT = datetime.timedelta(seconds=60)


def full(value: float, count: int = 5) -> Any:
    return torch.full((count,), float(value))


def groups(rank: int) -> None:
    """Each group has ops of its own, and one that waits delays no other."""
    lists = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 1, 2], [0, 1, 2, 3], [3]]
    made = [(ranks, dist.new_group(ranks)) for ranks in lists]
    for ranks, group in reversed(made):
        if rank not in ranks:
            continue
        room = full(rank)
        dist.all_reduce(room, group=group)
        assert torch.equal(room, full(sum(ranks))), (ranks, room)
        dist.broadcast(room, ranks[-1], group=group)
        dist.barrier(group=group)
        objects: list[Any] = [None] * len(ranks)
        dist.all_gather_object(objects, {"rank": rank}, group=group)
        assert objects == [{"rank": member} for member in ranks]
    for ranks, group in made:
        if rank in ranks:
            dist.destroy_process_group(group)
    again = dist.new_group([1, 2])
    if rank in (1, 2):
        room = full(rank)
        dist.all_reduce(room, group=again)
        assert torch.equal(room, full(3))


def ring(rank: int, size: int, count: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    rooms = [torch.zeros(count) for _ in range(2)]
    works = [dist.isend(full(10 * rank + tag, count), after, tag=tag) for tag in (0, 1)]
    works += [dist.irecv(rooms[tag], before, tag=tag) for tag in (1, 0)]
    for work in works:
        work.wait()
    for tag, room in enumerate(rooms):
        assert torch.equal(room, full(10 * before + tag, count)), (before, tag, room)
    room = torch.zeros(count)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, full(rank, count), before),
                                        dist.P2POp(dist.irecv, room, after)]):
        work.wait()
    assert torch.equal(room, full(after, count))


def sends(rank: int, size: int) -> None:
    """Rings over both nodes, from any rank, a mismatch on both ends, one that nobody sends."""
    for count in (0, 1, 3000, 300000, 3000000):
        ring(rank, size, count)
    if rank == 1:
        seen = set()
        for _ in range(size - 1):
            room = torch.zeros(1)
            seen.add(dist.recv(room, tag=3))
            assert int(room) in seen
        assert seen == {0, 2, 3}
    else:
        dist.send(full(rank, 1), 1, tag=3)
    try:
        if rank == 1:
            dist.send(torch.zeros(3), 2)
        elif rank == 2:
            dist.recv(torch.zeros(4), 1)
    except RuntimeError as error:
        assert "rank 1 said 3; rank 2 said 4" in str(error), error
        assert isinstance(error, hvd.torch.distributed.DistributedError)
    else:
        assert rank in (0, 3)
    if rank == 0:
        work = dist.irecv(torch.zeros(1), 3, tag=8)
        try:
            work.wait(datetime.timedelta(seconds=0.05))
        except RuntimeError as error:
            assert "recv: not finished after 0.05 s" in str(error), error
        else:
            raise AssertionError("the wait did not end")
    dist.barrier()
    if rank == 3:
        dist.send(torch.ones(1), 0, tag=8)
    if rank == 0:
        work.wait()


def mesh(rank: int) -> None:
    """One dimension across the nodes, the other within each: replicas of a model that is cut in two."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "within"))
    for name, wanted in (("across", (rank % 2) * 2 + 2), ("within", rank // 2 * 4 + 1)):
        room = full(rank)
        dist.all_reduce(room, group=both.get_group(name))
        assert torch.equal(room, full(wanted)), (name, room)
    torch.manual_seed(rank % 2)  # the two halves
    model = DistributedDataParallel(torch.nn.Linear(6, 3), process_group=both.get_group("across"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        half = model(full(step + rank, 6))
        parts = [torch.zeros(3) for _ in range(2)]
        dist.all_gather(parts, half.detach(), group=both.get_group("within"))
        assert torch.equal(parts[rank % 2], half)
        (half.sum() - sum(float(part.sum()) for part in parts)).pow(2).backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    replicas = [torch.zeros_like(weights) for _ in range(2)]
    dist.all_gather(replicas, weights, group=both.get_group("across"))
    assert torch.equal(*replicas)


def sharded(rank: int) -> None:
    """FSDP2 with replicas across the nodes and shards within, where this torch has it."""
    try:
        from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel
    except ImportError:
        return
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer, mesh=both)
    fully_shard(model, mesh=both)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((2, 6), 0.1 * (step + rank))).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert len(set(losses)) == 3


def late(rank: int) -> None:
    """Some groups are done before others, whose ops still succeed."""
    odd = dist.new_group([1, 3])
    if rank in (1, 3):
        time.sleep(0.3)
        ones = torch.ones(3)
        dist.all_reduce(ones, group=odd)
        assert ones.tolist() == [2.0] * 3


def main() -> None:
    dist.init_process_group("hvd", timeout=TIMEOUT)
    rank, size = dist.get_rank(), dist.get_world_size()
    assert size == 4
    groups(rank)
    sends(rank, size)
    mesh(rank)
    sharded(rank)
    late(rank)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: all is well")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
