# SPDX-License-Identifier: Apache-2.0
"""Helpers that scripts and their tests import."""
from __future__ import annotations

from hvd.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]
