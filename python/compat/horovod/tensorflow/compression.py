# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.compression."""
from __future__ import annotations

from hvd.tensorflow.compression import BF16Compressor, Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
