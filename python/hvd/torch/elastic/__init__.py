# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. States and samplers work, and run() in a job of fixed size, without resets."""
from __future__ import annotations

from hvd._elastic import run
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
