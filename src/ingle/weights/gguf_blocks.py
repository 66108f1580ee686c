"""GGUF block formats, mapped exactly onto group-affine codes: nothing is quantised again.

Each format is a run of blocks with a half-precision scale and packed codes (the public ggml block
layouts). value = scale * code + bias holds in float32 with the same rounding as the formats' own
formulas: scale * code is exact (at most 24 significant bits) and one addition rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ingle.contracts.weights import Affine, Dense, Weight

Bytes: TypeAlias = NDArray[Any]  # uint8
Floats: TypeAlias = NDArray[Any]  # float32
Codes: TypeAlias = tuple[Bytes, Floats, Floats]  # codes, scales, biases


@dataclass(frozen=True, slots=True)
class BlockType:
    """`decode` turns blocks [count, nbytes] into (codes [count, items], scales, biases [count, groups])."""

    name: str
    items: int  # values in a block
    nbytes: int  # bytes of a block
    bits: int  # of the codes that `decode` gives; 0 for plain floats
    group: int
    decode: Callable[[Bytes], Codes] | None = None


def to_weight(kind: BlockType, data: Bytes, shape: tuple[int, ...]) -> Weight:
    """The tensor [..., K] stored in `data`: dense floats, or codes for a matrix [N, K]."""
    if kind.decode is None:
        return Dense(_plain(kind.name, data).reshape(shape))
    n, k = int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]
    codes, scales, biases = kind.decode(data.reshape(-1, kind.nbytes))
    return Affine(
        mx.array(pack(codes.reshape(n, k), kind.bits)),
        _half_if_exact(scales.reshape(n, k // kind.group)),
        _half_if_exact(biases.reshape(n, k // kind.group)),
        kind.bits,
        kind.group,
    )


def pack(codes: Bytes, bits: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Codes [N, K] to MLX's packed words [N, K * bits / 32]: a little-endian stream of `bits` each."""
    if bits == 8:
        stream = np.ascontiguousarray(codes)
    elif bits == 4:
        stream = codes[:, 0::2] | (codes[:, 1::2] << 4)
    else:
        singles = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
        stream = np.packbits(singles.reshape(codes.shape[0], -1), axis=1, bitorder="little")
    return stream.view("<u4")


def _half_if_exact(values: Floats) -> mx.array:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return mx.array(half if np.array_equal(half.astype(np.float32), values, equal_nan=True) else values)


def _plain(name: str, data: Bytes) -> mx.array:
    match name:
        case "F32":
            return mx.array(data.view("<f4"))
        case "F16":
            return mx.array(data.view("<f2"))
        case _:  # NumPy has no bfloat16: hand its bits over
            return mx.array(data.view("<u2")).view(mx.bfloat16)


def _half(blocks: Bytes, at: int) -> Floats:
    """The half-precision number at byte `at` of each block, float32 [count, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves of all bytes, then their high halves: [count, n] -> [count, 2n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _q4_0(b: Bytes) -> Codes:
    d = _half(b, 0)
    return _nibbles(b[:, 2:18]), d, -8 * d


def _q4_1(b: Bytes) -> Codes:
    return _nibbles(b[:, 4:20]), _half(b, 0), _half(b, 2)


def _fifth_bits(b: Bytes) -> Bytes:
    """32 single bits of a little-endian word, already shifted to weight 16."""
    return np.unpackbits(np.ascontiguousarray(b), axis=1, bitorder="little") << 4


def _q5_0(b: Bytes) -> Codes:
    d = _half(b, 0)
    return _nibbles(b[:, 6:22]) | _fifth_bits(b[:, 2:6]), d, -16 * d


def _q5_1(b: Bytes) -> Codes:
    return _nibbles(b[:, 8:24]) | _fifth_bits(b[:, 4:8]), _half(b, 0), _half(b, 2)


def _q8_0(b: Bytes) -> Codes:
    d = _half(b, 0)
    return b[:, 2:34] ^ 128, d, -128 * d  # two's complement to offset binary


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes: each float32 [count, 8].

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their low
    nibbles in bytes 8-11 and their two high bits on top of bytes 0-3 and 4-7.
    """
    first, second, rest = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes to 256 codes: each run of 32 bytes holds 32 low codes, then 32 high codes."""
    runs = packed.reshape(-1, 4, 32)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(-1, 256)


def _q4_k(b: Bytes) -> Codes:
    scales, minima = _k_scales(b[:, 4:16])
    return _k_nibbles(b[:, 16:144]), _half(b, 0) * scales, -(_half(b, 2) * minima)


def _q5_k(b: Bytes) -> Codes:
    scales, minima = _k_scales(b[:, 4:16])
    high = b[:, 16:48]  # bit g of byte j: fifth bit of code j in group g
    fifth = np.stack([(high >> g & 1) << 4 for g in range(8)], axis=1).reshape(-1, 256)
    return _k_nibbles(b[:, 48:176]) | fifth, _half(b, 0) * scales, -(_half(b, 2) * minima)


def _q6_k(b: Bytes) -> Codes:
    low, high = b[:, 0:128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    four = np.concatenate([low & 15, low >> 4], axis=2)  # [count, 2, 128]
    two = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    codes = (four | (two << 4)).reshape(-1, 256)
    scales = _half(b, 208) * np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, scales, -32 * scales


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4, 0, 1),
    1: BlockType("F16", 1, 2, 0, 1),
    2: BlockType("Q4_0", 32, 18, 4, 32, _q4_0),
    3: BlockType("Q4_1", 32, 20, 4, 32, _q4_1),
    6: BlockType("Q5_0", 32, 22, 5, 32, _q5_0),
    7: BlockType("Q5_1", 32, 24, 5, 32, _q5_1),
    8: BlockType("Q8_0", 32, 34, 8, 32, _q8_0),
    12: BlockType("Q4_K", 256, 144, 4, 32, _q4_k),
    13: BlockType("Q5_K", 256, 176, 5, 32, _q5_k),
    14: BlockType("Q6_K", 256, 210, 6, 16, _q6_k),
    30: BlockType("BF16", 1, 2, 0, 1),
}
"""By the type number that GGUF files store."""
