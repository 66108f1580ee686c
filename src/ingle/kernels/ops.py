"""The one seam to arithmetic: Ingle's native CPU operations where they are built, MLX's ops elsewhere.

Model code calls these functions and never asks which back end runs. With float32 activations on the
CPU every operation is native, and each row of its result has the same bits whatever other rows share
the call.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import mlx.core as mx

from ingle.contracts.cache import KVView, TableView
from ingle.contracts.weights import Affine, Dense
from ingle.kernels import native, plain
from ingle.kernels.packing import PackedLinear, dequantize, on_cpu, pack_linear, uses_native

if TYPE_CHECKING:
    from ingle.kernels._cpu import Draw, KVTable

__all__ = [
    "Activation",
    "Choice",
    "PackedLinear",
    "append",
    "attend_all",
    "attention",
    "choose",
    "default_dtype",
    "dequantize",
    "describe",
    "embed",
    "expert_linear",
    "gated",
    "gated_linear",
    "linear",
    "native_draws",
    "pack_linear",
    "rms_norm",
    "rope",
    "row_invariant",
    "uses_native",
    "warn_if_plain",
    "write",
]

Activation = Literal["silu", "gelu_tanh"]


def describe() -> str:
    """The back end in words, for people: "cpu (native avx512, 2 threads)", "metal"."""
    if on_cpu():
        return f"cpu ({native.describe()})"
    return "metal" if mx.metal.is_available() else "cuda"


def default_dtype() -> mx.Dtype:
    """float32 on the CPU, where the native operations take it and MLX is slower otherwise; else bfloat16."""
    return mx.float32 if on_cpu() else mx.bfloat16


def row_invariant(dtype: mx.Dtype) -> bool:
    """Whether a row's results have the same bits in any company, for activations of `dtype`."""
    return uses_native(dtype)


def warn_if_plain() -> None:
    """One warning, with the cause, when this CPU could run the native operations but they are missing."""
    if on_cpu() and not native.available():
        warnings.warn(
            f"native CPU kernels are not in use ({native.describe()}); plain MLX is many times slower",
            RuntimeWarning,
            stacklevel=2,
        )


def linear(x: mx.array, packed: PackedLinear, softcap: float | None = None) -> mx.array:
    """x [..., K] times the weight's transpose, plus its bias: [..., N] in x's dtype.

    With `softcap`, cap * tanh(that / cap).
    """
    w = packed.weight
    if isinstance(w, Dense):
        out = x @ w.values.T
    elif isinstance(w, Affine):
        out = mx.quantized_matmul(
            x, w.codes, w.scales, w.biases, transpose=True, group_size=w.group_size, bits=w.bits
        )
    else:
        return native.cpu.linear(x, [w], [packed.bias], softcap=softcap or 0.0)
    out = out if packed.bias is None else out + packed.bias
    return out if softcap is None else softcap * mx.tanh(out / softcap)


def gated_linear(x: mx.array, gate: PackedLinear, up: PackedLinear, activation: Activation) -> mx.array:
    """activation(gate(x)) * up(x): [..., K] -> [..., N] in one pass over x."""
    if isinstance(gate.weight, Dense | Affine) or isinstance(up.weight, Dense | Affine):
        return gated(linear(x, gate), linear(x, up), activation)
    return native.cpu.gated_linear(x, gate.weight, up.weight, gate.bias, up.bias, activation)


def expert_linear(x: mx.array, experts: Sequence[PackedLinear], ends: mx.array) -> mx.array:
    """Rows of x [rows, K], sorted by expert, each times its own expert's weight [N, K]: [rows, N].

    Expert e has rows [ends[e - 1], ends[e]); `ends` is int32 [experts]. Rows of no expert give zeros.
    Experts have no biases.
    """
    weights = [e.weight for e in experts]
    packed = [w for w in weights if not isinstance(w, Dense | Affine)]
    if len(packed) == len(weights):
        return native.cpu.expert_linear(x, packed, ends)
    rows = mx.arange(x.shape[0])[:, None]
    starts = mx.concatenate([mx.zeros((1,), mx.int32), ends[:-1]])
    out = mx.zeros((x.shape[0], linear(x[:1], experts[0]).shape[-1]), x.dtype)
    for e, expert in enumerate(experts):
        mine = (rows >= starts[e]) & (rows < ends[e])
        out = mx.where(mine, linear(x, expert), out)
    return out


def embed(ids: mx.array, packed: PackedLinear, scale: float = 1.0) -> mx.array:
    """Rows `ids` [tokens] of the weight, times `scale`: [tokens, K] in the activations' dtype."""
    w = packed.weight
    if isinstance(w, Dense):
        rows = w.values[ids].astype(packed.dtype)
    elif isinstance(w, Affine):
        codes = Affine(w.codes[ids], w.scales[ids], w.biases[ids], w.bits, w.group_size)
        rows = dequantize(codes, packed.dtype)
    else:
        return native.cpu.embed(ids.astype(mx.int32), w, scale)
    # References round the factor to the dtype first.
    return rows if scale == 1.0 else rows * mx.array(scale, rows.dtype)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    if uses_native(x.dtype):
        return native.cpu.rms_norm(x, weight, eps)
    return mx.fast.rms_norm(x, weight, eps)


def rope(x: mx.array, offsets: Sequence[int], inv_freq: mx.array, scale: float = 1.0) -> mx.array:
    """Rotate pairs (i, i + D/2) of x [rows, heads, length, D] by position * inv_freq[i].

    Token j of row r stands at position offsets[r] + j. `inv_freq` is float32 [D/2]; cos and sin are
    multiplied by `scale`. Angles are computed in float32, as the reference implementations do.
    """
    if uses_native(x.dtype):
        return native.cpu.rope(x, offsets, inv_freq, scale)
    return plain.rope(x, offsets, inv_freq, scale)


def gated(gate: mx.array, up: mx.array, activation: Activation) -> mx.array:
    """activation(gate) * up. "gelu_tanh" is GELU's tanh form (Hendrycks and Gimpel, 2016)."""
    if uses_native(gate.dtype):
        return native.cpu.gate(gate, up, activation)
    return plain.gate(gate, up, activation)


def append(view: TableView, keys: mx.array, values: mx.array) -> mx.array:
    """Write [rows, kv_heads, length, D] at the view's offsets of its tables, where there is room.

    Waits for what the view waits for. Who reads or writes there later waits for the result.
    """
    return native.cpu.append(keys, values, _tables(view), view.layer, view.offsets, view.after)


def write(buffer: mx.array, new: mx.array, starts: Sequence[int]) -> mx.array:
    """`buffer` [rows, kv_heads, columns, D] with row r of `new` from column starts[r] on.

    Takes the buffer's memory where nobody else holds it, else copies.
    """
    return plain.write(buffer, new, starts)


def _tables(view: TableView) -> Sequence[KVTable]:
    return cast("Sequence[KVTable]", view.tables)


def attention(
    queries: mx.array,
    view: KVView,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    ends: mx.array | None = None,
) -> mx.array:
    """Attention of queries [rows, heads, length, D] over a cache view, same shape out.

    Query i of row r stands at position p = offsets[r] + i and sees key positions up to p, with a
    window only those above p - window. With `ends`, int32 [rows, length], it sees positions below
    ends[r, i] instead, its own at least: spans whose tokens attend both ways. Scores are q.k * scale,
    then cap * tanh(score / cap). Query head h reads KV head h * kv_heads // heads.
    """
    if isinstance(view, TableView):
        return native.cpu.attention(
            queries,
            _tables(view),
            view.layer,
            view.offsets,
            view.after,
            ends,
            scale,
            window or 0,
            softcap or 0.0,
        )
    return plain.attention(queries, view, ends, scale=scale, window=window, softcap=softcap)


def attend_all(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float) -> mx.array:
    """Attention without order: every query [heads, length, D] sees every key. Same shape out."""
    if not uses_native(queries.dtype):
        return mx.fast.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=scale)[0]
    heads, length, dim = queries.shape
    table = native.cpu.KVTable(1, heads, dim, False)
    table.reserve(0, 0, length)
    view = TableView([table], 0, (0,), [])
    view = view._replace(after=[append(view, keys[None], values[None])])
    ends = mx.full((1, length), length, mx.int32)
    return attention(queries[None], view, scale=scale, window=None, softcap=None, ends=ends)[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """How one row's token is drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0: no filter."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: tuple[int, int]  # of the row's noise: two 32-bit words


def native_draws(choices: Sequence[Choice]) -> list[Draw]:
    """The same for native operations."""
    return [native.cpu.Draw(c.temperature, c.top_k, c.top_p, c.min_p, *c.key) for c in choices]


def choose(logits: mx.array, choices: Sequence[Choice]) -> mx.array:
    """Next tokens, int32 [rows], from float32 logits [rows, vocab]; -1 where a row has NaN or +inf.

    argmax(logits / temperature + Gumbel noise) over the tokens that the filters keep, applied in the
    order k, p, min-p. Tokens that tie with the last one kept are kept too. Noise is MLX's Threefry
    generator at (key, token).
    """
    if uses_native(logits.dtype):
        return native.cpu.sample(logits, native_draws(choices))
    return plain.choose(
        logits,
        [c.temperature for c in choices],
        [c.top_k for c in choices],
        [c.top_p for c in choices],
        [c.min_p for c in choices],
        [c.key for c in choices],
    )
