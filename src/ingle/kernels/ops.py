"""The one seam to arithmetic: MLX's ops, and Ingle's native primitives where they are built.

Model code calls these functions and never asks which back end runs. Products with 4- and 8-bit
weights and float32 activations on the CPU run in the native extension; each of its outputs has the
same bits whatever other rows share the call. Everything else runs MLX's own ops.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from ingle.contracts.cache import KVView
from ingle.contracts.weights import Affine, Dense, Weight
from ingle.kernels import native

Activation = Literal["silu", "gelu_tanh"]

_NATIVE_GROUPS = {4: (32, 64, 128), 8: (16, 32, 64, 128)}  # by bits
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS = (32, 64, 128)


def _uses_native(dtype: mx.Dtype) -> bool:
    return native.available() and dtype == mx.float32 and _on_cpu()


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


def describe() -> str:
    """The back end in words, for people: "cpu (native avx512, 2 threads)", "metal"."""
    if _on_cpu():
        return f"cpu ({native.describe()})"
    return "metal" if mx.metal.is_available() else "cuda"


def default_dtype() -> mx.Dtype:
    """float32 on the CPU, where MLX's half-precision paths are slower and less exact; else bfloat16."""
    return mx.float32 if _on_cpu() else mx.bfloat16


def warn_if_plain() -> None:
    """One warning, with the cause, when this CPU could run the native primitives but they are missing."""
    if _on_cpu() and not native.available():
        warnings.warn(
            f"native CPU kernels are not in use ({native.describe()}); plain MLX is many times slower",
            RuntimeWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A weight [N, K] as `linear` and `embed` read it. Made once by `pack_linear`."""

    weight: Weight
    bias: mx.array | None
    dtype: mx.Dtype  # of activations
    native: bool

    @property
    def arrays(self) -> list[mx.array]:
        w = self.weight
        parts = [w.values] if isinstance(w, Dense) else [w.codes, w.scales, w.biases]
        return parts if self.bias is None else [*parts, self.bias]


def pack_linear(weight: Weight, dtype: mx.Dtype, bias: mx.array | None = None) -> PackedLinear:
    """Bring a checkpoint's weight [N, K] into the form this back end multiplies fastest.

    Codes stay codes wherever a kernel can read them; other combinations become dense `dtype`.
    """
    bias = None if bias is None else bias.astype(dtype)
    if isinstance(weight, Dense):
        return PackedLinear(Dense(weight.values.astype(dtype)), bias, dtype, native=False)
    if _uses_native(dtype):
        weight = _widen(weight)
        if weight.group_size in _NATIVE_GROUPS.get(weight.bits, ()):
            return PackedLinear(_with_scales(weight, mx.float32), bias, dtype, native=True)
    elif weight.bits in _MLX_BITS and weight.group_size in _MLX_GROUPS:
        return PackedLinear(_with_scales(weight, dtype), bias, dtype, native=False)
    return PackedLinear(Dense(dequantize(weight, dtype)), bias, dtype, native=False)


def _with_scales(weight: Affine, dtype: mx.Dtype) -> Affine:
    """Kernels want scales and biases in one dtype, converted once and not at each call."""
    scales, biases = weight.scales.astype(dtype), weight.biases.astype(dtype)
    return Affine(weight.codes, scales, biases, weight.bits, weight.group_size)


def _widen(weight: Affine) -> Affine:
    """The same values with codes of 4 or 8 bits, which the native kernels read."""
    if weight.bits in _NATIVE_GROUPS or weight.group_size not in _MLX_GROUPS:
        return weight
    bits = 4 if weight.bits < 4 else 8
    ones = mx.ones(weight.scales.shape, mx.float32)
    codes = mx.dequantize(weight.codes, ones, mx.zeros_like(ones), weight.group_size, weight.bits)
    words = codes.astype(mx.uint32).reshape(codes.shape[0], -1, 32 // bits)
    packed = mx.sum(words << mx.arange(0, 32, bits, dtype=mx.uint32), axis=-1).astype(mx.uint32)
    return Affine(packed, weight.scales, weight.biases, bits, weight.group_size)


def dequantize(weight: Affine, dtype: mx.Dtype) -> mx.array:
    """scale * code + bias for every element, [N, K] in `dtype`; any group size and bits of 2, 4 or 8."""
    n, k = weight.shape
    if weight.bits in _MLX_BITS and weight.group_size in _MLX_GROUPS:
        return mx.dequantize(
            weight.codes,
            weight.scales.astype(mx.float32),
            weight.biases.astype(mx.float32),
            weight.group_size,
            weight.bits,
        ).astype(dtype)
    shifts = mx.arange(0, 32, weight.bits, dtype=mx.uint32)
    codes = (weight.codes[:, :, None] >> shifts) & ((1 << weight.bits) - 1)
    grouped = codes.reshape(n, k // weight.group_size, weight.group_size).astype(mx.float32)
    values = weight.scales.astype(mx.float32)[:, :, None] * grouped
    return (values + weight.biases.astype(mx.float32)[:, :, None]).reshape(n, k).astype(dtype)


def linear(x: mx.array, packed: PackedLinear) -> mx.array:
    """x [..., K] times the weight's transpose, plus its bias: [..., N] in x's dtype."""
    w = packed.weight
    if isinstance(w, Dense):
        out = x @ w.values.T
    elif packed.native:
        out = native.affine_linear(x, w.codes, w.scales, w.biases, w.bits, w.group_size)
    else:
        out = mx.quantized_matmul(
            x, w.codes, w.scales, w.biases, transpose=True, group_size=w.group_size, bits=w.bits
        )
    return out if packed.bias is None else out + packed.bias


def embed(ids: mx.array, packed: PackedLinear) -> mx.array:
    """Rows `ids` [tokens] of the weight: [tokens, K] in the activations' dtype."""
    w = packed.weight
    if isinstance(w, Dense):
        return w.values[ids].astype(packed.dtype)
    rows = Affine(w.codes[ids], w.scales[ids], w.biases[ids], w.bits, w.group_size)
    return dequantize(rows, packed.dtype)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return mx.fast.rms_norm(x, weight, eps)


def rope(x: mx.array, offsets: Sequence[int], inv_freq: mx.array, scale: float = 1.0) -> mx.array:
    """Rotate pairs (i, i + D/2) of x [rows, heads, length, D] by position * inv_freq[i].

    Token j of row r stands at position offsets[r] + j. `inv_freq` is float32 [D/2]; cos and sin are
    multiplied by `scale`. Angles are computed in float32, as the reference implementations do.
    """
    positions = mx.array(list(offsets))[:, None] + mx.arange(x.shape[2])[None]
    angles = positions.astype(mx.float32)[:, None, :, None] * inv_freq
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    out = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return out.astype(x.dtype)


def gated(gate: mx.array, up: mx.array, activation: Activation) -> mx.array:
    """activation(gate) * up. "gelu_tanh" is GELU's tanh form (Hendrycks and Gimpel, 2016)."""
    if activation == "silu":
        return gate * mx.sigmoid(gate) * up
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # sqrt(2 / pi)
    return 0.5 * gate * (1 + mx.tanh(inner)) * up


def attention(
    queries: mx.array, view: KVView, *, scale: float, window: int | None, softcap: float | None
) -> mx.array:
    """Causal attention of queries [rows, heads, length, D] over a cache view, same shape out.

    Query i of row r stands at position p = offsets[r] + i and sees key positions up to p, with a
    window only those above p - window. Scores are q.k * scale, then cap * tanh(score / cap).
    Heads are grouped: query head h reads KV head h * kv_heads // heads.
    """
    length = queries.shape[2]
    columns = max(o - b for o, b in zip(view.offsets, view.bases, strict=True)) + length
    keys, values = view.keys[:, :, :columns], view.values[:, :, :columns]
    mask = _mask(view, length, columns, window)
    if softcap is None:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
    rows, heads, _, dim = queries.shape
    kv_heads = keys.shape[1]
    q = queries.reshape(rows, kv_heads, heads // kv_heads, length, dim)
    scores = (q * scale) @ keys[:, :, None].swapaxes(-1, -2)
    scores = softcap * mx.tanh(scores / softcap)
    if mask is not None:
        scores = mx.where(mask[:, :, None], scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return (weights @ values[:, :, None]).reshape(rows, heads, length, dim)


def _mask(view: KVView, length: int, columns: int, window: int | None) -> mx.array | None:
    """bool [rows, 1, length, columns]; None when every query sees every column."""
    if len(view.bases) == 1 and length == 1 and (window is None or columns <= window):
        return None
    offsets, bases = mx.array(view.offsets), mx.array(view.bases)
    queries = (offsets[:, None] + mx.arange(length))[:, None, :, None]
    keys = (bases[:, None] + mx.arange(columns))[:, None, None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
