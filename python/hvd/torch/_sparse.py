# SPDX-License-Identifier: Apache-2.0
"""What is sent of a sparse COO tensor whose sum over a process group is wanted, and the sum: DDP's gradients of
nn.Embedding(sparse=True).

    whole numbers   elements, sparse and dense dimensions, shape, indices  |
    values          one after the other                                    |  of all members, by group rank

Every member adds up the same numbers in the same order, so all have the same sum.
"""
from __future__ import annotations

from typing import Any

import torch

from hvd.torch._work import DistributedError


def packed(tensor: Any) -> tuple[Any, Any]:
    """Whole numbers and values of a tensor, each in one dimension, on the host."""
    whole = tensor.detach().coalesce()
    indices, values = whole.indices(), whole.values()
    head = torch.tensor([indices.shape[1], whole.sparse_dim(), whole.dense_dim(), *whole.shape], device="cpu")
    return torch.cat([head, indices.cpu().reshape(-1)]), values.cpu().contiguous().reshape(-1)


def total(numbers: Any, values: Any, members: int, like: Any) -> Any:
    """The coalesced sum of what all members have packed. DistributedError: a tensor has not the shape of `like`."""
    sparse, wanted = like.sparse_dim(), [like.sparse_dim(), like.dense_dim(), *like.shape]
    indices, count, at = [], 0, 0
    for member in range(members):
        theirs, *shape = numbers[at:at + 1 + len(wanted)].tolist()
        if shape != wanted:
            raise DistributedError(f"all_reduce: this rank's sparse tensor has the shape {wanted[2:]}, {sparse} of its dimensions "
                                   f"sparse; group rank {member} has another one")
        at += 1 + len(wanted)
        indices.append(numbers[at:at + sparse * theirs].view(sparse, theirs))
        at += sparse * theirs
        count += theirs
    made = torch.sparse_coo_tensor(torch.cat(indices, dim=1), values.view(count, *like.shape[sparse:]), like.shape,
                                   device=values.device, check_invariants=False)
    return made.coalesce().to(like.device)
