# SPDX-License-Identifier: Apache-2.0
"""A training step whose gradients outweigh its arithmetic: fourteen residual layers of 1024, 60 MB of gradients, eight rows
on each rank. Every framework trains it from the same start on the same rows."""
from typing import Any, Callable

import measuring
import torch

ROWS = 8  # of each rank
WIDTH = 1024
STEPS_CHECKED = 6


class _Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(14))
        self.last = torch.nn.Linear(WIDTH, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of 1024 -> ten numbers each."""
        for layer in self.layers:
            rows = rows + torch.relu(layer(rows)) / 4
        return self.last(rows)


def make_model() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(1)
    return _Network()


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The user's."""
    return torch.optim.SGD(model.parameters(), lr=0.005)


class _Training:
    """`wrap` makes a model and its optimizer distributed: it gives the model to call and the optimizer to step."""

    def __init__(self, rank: int, size: int, wrap: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        torch.manual_seed(2)
        rows = torch.randn(size * ROWS, WIDTH)
        kinds = torch.randint(0, 10, (size * ROWS,))
        self.everything = rows, kinds
        self.mine = rows[rank::size].contiguous(), kinds[rank::size].contiguous()
        self.plain = make_model()
        self.model, self.optimizer = wrap(self.plain, make_optimizer(self.plain))

    def step(self) -> None:
        """One step as users write it."""
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(self.mine[0]), self.mine[1]).backward()
        self.optimizer.step()

    def _loss(self, model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(self.everything[0]), self.everything[1]))

    def right(self) -> bool:
        """After one step: whether the losses of the next ones are those of one process with all ranks' rows."""
        alone = make_model()
        optimizer = make_optimizer(alone)
        for number in range(STEPS_CHECKED):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(alone(self.everything[0]), self.everything[1]).backward()
            optimizer.step()
            if number:
                self.step()
            one, ours = self._loss(alone), self._loss(self.plain)
            if not abs(one - ours) <= 1e-5 * max(1.0, abs(one)):
                print(f"step {number}: the loss is {ours}, of one process {one}", flush=True)
                return False
        return True


def prepared(rank: int, size: int, wrap: Callable[[Any, Any], tuple[Any, Any]]) -> measuring.Prepared:
    """For measuring.py: a step, the bytes of its gradients, and the check of the losses."""
    training = _Training(rank, size, wrap)
    return training.step, sum(parameter.numel() for parameter in training.plain.parameters()) * 4, training.right
