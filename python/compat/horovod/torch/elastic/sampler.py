# SPDX-License-Identifier: Apache-2.0
"""hvd.torch.elastic.sampler."""
from __future__ import annotations

from hvd.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
