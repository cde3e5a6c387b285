# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.elastic."""
from __future__ import annotations

from hvd.torch.elastic import ElasticSampler, TorchState, run

__all__ = ["ElasticSampler", "TorchState", "run"]
