# SPDX-License-Identifier: Apache-2.0
"""Where the ops come from."""
from __future__ import annotations

from hvd.tensorflow import _fallback as ops  # noqa: F401

is_native = False
