"""Weights in the form that the back end in use multiplies fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from ingle.contracts.weights import Affine, Dense, Weight
from ingle.kernels import native

if TYPE_CHECKING:
    from ingle.kernels._cpu import Packed

_NATIVE_BITS = (2, 3, 4, 5, 6, 8)
_NATIVE_GROUPS = (16, 32, 64, 128)
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A weight [N, K] and its bias [N]. The native form is no MLX array and stands alone."""

    weight: Weight | Packed
    bias: mx.array | None
    dtype: mx.Dtype  # of activations

    @property
    def nbytes(self) -> int:
        own = 0 if isinstance(self.weight, Affine | Dense) else self.weight.nbytes
        return own + sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """What is still lazy: to be evaluated before the checkpoint's bytes can go."""
        w = self.weight
        parts = [w.codes, w.scales, w.biases] if isinstance(w, Affine) else []
        parts += [w.values] if isinstance(w, Dense) else []
        return parts if self.bias is None else [*parts, self.bias]


def uses_native(dtype: mx.Dtype) -> bool:
    """Native operations take float32 activations on the CPU; weights may have any form."""
    return native.available() and dtype == mx.float32 and on_cpu()


def on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


def pack_linear(weight: Weight, dtype: mx.Dtype, bias: mx.array | None = None) -> PackedLinear:
    """Bring a checkpoint's weight [N, K] into the form this back end multiplies fastest.

    Codes stay codes wherever a kernel can read them; other combinations become dense `dtype`.
    """
    bias = None if bias is None else bias.astype(dtype)
    if uses_native(dtype):
        return PackedLinear(_pack_native(weight), bias, dtype)
    if isinstance(weight, Dense):
        return PackedLinear(Dense(weight.values.astype(dtype)), bias, dtype)
    if weight.bits in _MLX_BITS and weight.group_size in _MLX_GROUPS:
        scales, biases = weight.scales.astype(dtype), weight.biases.astype(dtype)
        packed = Affine(weight.codes, scales, biases, weight.bits, weight.group_size)
        return PackedLinear(packed, bias, dtype)
    return PackedLinear(Dense(dequantize(weight, dtype)), bias, dtype)


def _pack_native(weight: Weight) -> Packed:
    cpu = native.cpu
    if isinstance(weight, Affine):
        if weight.bits in _NATIVE_BITS and weight.group_size in _NATIVE_GROUPS:
            w = weight
            return cpu.pack_codes(w.codes, w.scales, w.biases, w.bits, w.group_size)
        return cpu.pack_floats(dequantize(weight, mx.float32))
    values = weight.values
    if values.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        values = values.astype(mx.float32)
    return cpu.pack_floats(values)


def dequantize(weight: Affine, dtype: mx.Dtype) -> mx.array:
    """scale * code + bias for every element, [N, K] in `dtype`; any group size and bits up to 8."""
    n, k = weight.shape
    if weight.bits in _MLX_BITS and weight.group_size in _MLX_GROUPS:
        return mx.dequantize(
            weight.codes,
            weight.scales.astype(mx.float32),
            weight.biases.astype(mx.float32),
            weight.group_size,
            weight.bits,
        ).astype(dtype)
    codes = _unpack(weight.codes, k, weight.bits)
    grouped = codes.reshape(n, k // weight.group_size, weight.group_size).astype(mx.float32)
    values = weight.scales.astype(mx.float32)[:, :, None] * grouped
    return (values + weight.biases.astype(mx.float32)[:, :, None]).reshape(n, k).astype(dtype)


def _unpack(words: mx.array, count: int, bits: int) -> mx.array:
    """The first `count` codes of each row of a little-endian stream of uint32 words: [N, count]."""
    start = mx.arange(count, dtype=mx.uint32) * bits
    word, shift = start // 32, start % 32
    following = mx.minimum(word + 1, words.shape[1] - 1)  # read only by codes that straddle two words
    low, high = words[:, word] >> shift, (words[:, following] << (31 - shift)) << 1
    return (low | high) & ((1 << bits) - 1)
