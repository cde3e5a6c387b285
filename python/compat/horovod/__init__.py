# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on top of hvd, for scripts that were written for Horovod. New code imports hvd."""
from __future__ import annotations

import hvd as _hvd
from hvd.runner import run

#: The release of Horovod whose interface this is, and the hvd below.
__version__: str = f"0.28.1+hvd.{_hvd.__version__}"

__all__ = ["__version__", "run"]
