# SPDX-License-Identifier: Apache-2.0
"""Elastic training's names. States and samplers work; run() does not exist yet and says so when it is called."""
from __future__ import annotations

from hvd._elastic import run
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
