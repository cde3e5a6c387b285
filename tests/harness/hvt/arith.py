# SPDX-License-Identifier: Apache-2.0
"""The plain reference for every reduction: one element at a time, in rank order, in the precision the header promises.

Values travel as bytes in the element type's layout, so a comparison is bitwise.
"""
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True)
class Dtype:
    """An element type: `code` is the struct letter (bfloat16 has none)."""
    name: str
    number: int
    bytes: int
    code: str
    kind: str  # "int", "uint", "float", "bool"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return self.bytes * 8


DTYPES = {row.name: row for row in (
    Dtype("uint8", 0, 1, "B", "uint"), Dtype("int8", 1, 1, "b", "int"), Dtype("uint16", 2, 2, "H", "uint"),
    Dtype("int16", 3, 2, "h", "int"), Dtype("int32", 4, 4, "i", "int"), Dtype("int64", 5, 8, "q", "int"),
    Dtype("float16", 6, 2, "e", "float"), Dtype("float32", 7, 4, "f", "float"), Dtype("float64", 8, 8, "d", "float"),
    Dtype("bool", 9, 1, "B", "bool"), Dtype("bfloat16", 10, 2, "", "float"))}


def round_float32(value: float) -> float:
    """The nearest float32, ties to even; infinity beyond the largest."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _bfloat16_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", round_float32(value)))[0]
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff


def pack(dtype: Dtype, values: Sequence[Number]) -> bytes:
    """Values -> bytes, rounding to nearest even once; out of range becomes infinity."""
    if dtype.name == "bfloat16":
        return b"".join(struct.pack("<H", _bfloat16_bits(value)) for value in values)
    if dtype.name in ("float16", "float32"):
        try:
            return struct.pack(f"<{len(values)}{dtype.code}", *values)
        except OverflowError:
            return b"".join(_pack_one(dtype, value) for value in values)
    return struct.pack(f"<{len(values)}{dtype.code}", *values)


def _pack_one(dtype: Dtype, value: float) -> bytes:
    try:
        return struct.pack("<" + dtype.code, value)
    except OverflowError:
        return struct.pack("<" + dtype.code, math.copysign(math.inf, value))


def unpack(dtype: Dtype, data: bytes) -> list[Number]:
    """Bytes -> values."""
    count = len(data) // dtype.bytes
    if dtype.name == "bfloat16":
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in struct.unpack(f"<{count}H", data)]
    return list(struct.unpack(f"<{count}{dtype.code}", data))


def sample(dtype: Dtype, count: int, seed: str) -> bytes:
    """`count` reproducible elements, with values that make rounding and wrap-around visible."""
    source = random.Random(f"{dtype.name}/{count}/{seed}")
    if dtype.kind == "bool":
        return bytes(source.randrange(2) for _ in range(count))
    if dtype.kind != "float":
        return source.randbytes(count * dtype.bytes)
    return pack(dtype, [source.uniform(-8, 8) for _ in range(count)])


def _wrap(dtype: Dtype, value: int) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def _truncating_divide(value: int, by: int) -> int:
    quotient = abs(value) // by
    return -quotient if value < 0 else quotient


def _reduce_ints(dtype: Dtype, reduce_op: str, values: Sequence[int]) -> int:
    result = values[0]
    for value in values[1:]:
        if reduce_op in ("sum", "average"):
            result = _wrap(dtype, result + value)
        elif reduce_op == "product":
            result = _wrap(dtype, result * value)
        else:
            result = (min if reduce_op == "min" else max)(result, value)
    return _truncating_divide(result, len(values)) if reduce_op == "average" else result


def _reduce_floats(dtype: Dtype, reduce_op: str, values: Sequence[float], prescale: float, postscale: float) -> float:
    fit = (lambda value: value) if dtype.name == "float64" else round_float32
    scaled = values if prescale == 1.0 else [fit(value * fit(prescale)) for value in values]
    result = scaled[0]
    for value in scaled[1:]:
        if reduce_op in ("sum", "average"):
            result = fit(result + value)
        elif reduce_op == "product":
            result = fit(result * value)
        elif math.isnan(result) or math.isnan(value):
            result = math.nan
        else:
            result = (min if reduce_op == "min" else max)(result, value)
    if reduce_op == "average":
        result = fit(result / len(values))
    return result if postscale == 1.0 else fit(result * fit(postscale))


def allreduce(dtype: Dtype, reduce_op: str, inputs: Sequence[bytes], prescale: float = 1.0,
              postscale: float = 1.0) -> bytes:
    """The result every rank must get. `inputs` are the ranks' tensors, rank 0 first."""
    columns = zip(*(unpack(dtype, data) for data in inputs))
    if dtype.kind == "float":
        return pack(dtype, [_reduce_floats(dtype, reduce_op, column, prescale, postscale) for column in columns])
    if dtype.kind == "bool":
        return bytes((all if reduce_op == "min" else any)(column) for column in columns)
    return pack(dtype, [_reduce_ints(dtype, reduce_op, column) for column in columns])


def supported(dtype: Dtype, reduce_op: str) -> bool:
    """Whether the combination is offered: booleans have only min (all) and max (any)."""
    return dtype.kind != "bool" or reduce_op in ("min", "max")
