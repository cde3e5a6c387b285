# SPDX-License-Identifier: Apache-2.0
"""What gradients are cast to for the way: nothing, float16 or bfloat16. A compressor of one's own is a class with the
two static methods of `Compressor`."""
from __future__ import annotations

from typing import Any

import torch

from hvd._compression import Compressor, NoneCompressor


class _Cast(Compressor):
    """Sends floating-point tensors in another type, others as they are."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.float16), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16: the range of float32, eight bits of precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.bfloat16), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)


class Compression:
    """The compressors, for the `compression` argument of ops and of DistributedOptimizer."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
