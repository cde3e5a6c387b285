# SPDX-License-Identifier: Apache-2.0
"""A sampler that deals a dataset to the ranks, and goes on in the middle of an epoch when their number has changed."""
from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from hvd.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Deals the indices of `dataset` to the ranks in equal shares; the last are dealt again where they do not suffice.

    record_batch() counts what has been used in this epoch, by all ranks; after a reset() only the rest is dealt. Call
    set_epoch() when an epoch ends, which also shuffles anew. Needs hvd.init()."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins this epoch: nothing of it is used yet."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """A batch of `batch_size` indices was used, here and on every other rank."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """As record_batch, for these indices."""
        self.processed_num += len(indices) * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The indices of this rank's batch number `batch_idx` since the last reset."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many indices all ranks have used of it."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes on from such a state."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals what is left of the epoch to the ranks there are now."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num:]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        dealt = list(self.remaining_indices)
        while dealt and len(dealt) < self.total_size:
            dealt += dealt[:self.total_size - len(dealt)]
        self.indices = dealt[self.rank:self.total_size:self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
