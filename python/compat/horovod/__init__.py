# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on top of hvd, for scripts that were written for Horovod. New code imports hvd."""
from __future__ import annotations

from horovod.runner import run

#: The release of Horovod whose interface this is. hvd.__version__ is the one below.
__version__: str = "0.28.1"

__all__ = ["__version__", "run"]
