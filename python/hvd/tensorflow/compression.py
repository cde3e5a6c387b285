# SPDX-License-Identifier: Apache-2.0
"""What gradients are cast to for the way: nothing, float16 or bfloat16. A compressor of one's own is a class with the
two static methods of `Compressor`."""
from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd._compression import Compressor, NoneCompressor


class _Cast(Compressor):
    """Sends floating-point tensors in another type, others as they are. The context is the tensor's own type."""

    wire: Any = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        tensor = tf.convert_to_tensor(tensor)
        return (tf.cast(tensor, cls.wire) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16."""

    wire = tf.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16: the range of float32, eight bits of precision."""

    wire = tf.bfloat16


class Compression:
    """The compressors, for the `compression` argument of ops, tapes and optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
