# SPDX-License-Identifier: Apache-2.0
"""The launcher's names: run, and horovod.runner.launch for the program horovodrun."""
from __future__ import annotations

import functools
from typing import Any

import hvd.runner


@functools.wraps(hvd.runner.run)
def run(*args: Any, **kwargs: Any) -> list[Any]:
    before = hvd.runner.called.set("horovodrun")
    try:
        return hvd.runner.run(*args, **kwargs)
    finally:
        hvd.runner.called.reset(before)


__all__ = ["run"]
