# SPDX-License-Identifier: Apache-2.0
"""Distributed training with TensorFlow: `import hvd.tensorflow as hvd`."""
from __future__ import annotations

from hvd.tensorflow.mpi_ops import *  # noqa: F401,F403 pylint: disable=wildcard-import,unused-wildcard-import
