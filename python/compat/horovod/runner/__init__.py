# SPDX-License-Identifier: Apache-2.0
"""The launcher's names: run, and horovod.runner.launch for the program horovodrun."""
from __future__ import annotations

from hvd.runner import run

__all__ = ["run"]
