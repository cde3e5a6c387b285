# SPDX-License-Identifier: Apache-2.0
"""Least squares by gradient descent, on other data on each rank: a trainer for the container of docs/containers.md.

$STEPS is how many steps it makes (200)."""
import os

import numpy as np

import hvd.numpy as hvd


def main() -> None:
    """Every rank ends with the same weights."""
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    truth, weights = np.arange(1.0, 9.0), np.zeros(8)
    for _ in range(int(os.environ.get("STEPS", "200"))):
        x = random.normal(size=(64, 8))
        gradient = x.T @ (x @ (weights - truth)) / 64
        weights -= 0.1 * hvd.allreduce(gradient, name="gradient")
    print(f"rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}: error {abs(weights - truth).max():.4f}")


if __name__ == "__main__":
    main()
