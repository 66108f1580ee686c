"""The operations of `ops` on MLX's own ops: the form for GPUs, and the fallback on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import ArrayView


def rope(x: mx.array, offsets: Sequence[int], inv_freq: mx.array, scale: float) -> mx.array:
    positions = mx.array(list(offsets))[:, None] + mx.arange(x.shape[2])[None]
    angles = positions.astype(mx.float32)[:, None, :, None] * inv_freq
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    out = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return out.astype(x.dtype)


def gate(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    if activation == "silu":
        return gate * mx.sigmoid(gate) * up
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # sqrt(2 / pi)
    return 0.5 * gate * (1 + mx.tanh(inner)) * up


def write(buffer: mx.array, new: mx.array, starts: Sequence[int]) -> mx.array:
    """`buffer` with row r of `new` at columns [starts[r], starts[r] + length); pure."""
    new = new.astype(buffer.dtype)
    if len(set(starts)) == 1:
        return mx.slice_update(buffer, new, mx.array([starts[0]]), axes=[2])
    columns = mx.array(list(starts))[:, None] + mx.arange(new.shape[2])[None]
    return mx.put_along_axis(buffer, columns[:, None, :, None], new, axis=2)


def attention(
    queries: mx.array,
    view: ArrayView,
    ends: mx.array | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> mx.array:
    rows, heads, length, dim = queries.shape
    columns = view.keys.shape[2]
    if ends is None:
        columns = max(o - b for o, b in zip(view.offsets, view.bases, strict=True)) + length
    keys = view.keys[:, :, :columns].astype(queries.dtype)
    values = view.values[:, :, :columns].astype(queries.dtype)
    mask = _mask(view, length, columns, window, ends)
    if softcap is None:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
    kv_heads = keys.shape[1]
    q = queries.reshape(rows, kv_heads, heads // kv_heads, length, dim)
    scores = (q * scale) @ keys[:, :, None].swapaxes(-1, -2)
    scores = softcap * mx.tanh(scores / softcap)
    if mask is not None:
        scores = mx.where(mask[:, :, None], scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return (weights @ values[:, :, None]).reshape(rows, heads, length, dim)


def _mask(
    view: ArrayView, length: int, columns: int, window: int | None, ends: mx.array | None
) -> mx.array | None:
    """bool [rows, 1, length, columns]; None when every query sees every column."""
    if len(view.bases) == 1 and length == 1 and ends is None and (window is None or columns <= window):
        return None
    offsets, bases = mx.array(view.offsets), mx.array(view.bases)
    queries = (offsets[:, None] + mx.arange(length))[:, None, :, None]
    keys = (bases[:, None] + mx.arange(columns))[:, None, None, :]
    seen = keys <= queries if ends is None else keys < mx.maximum(ends[:, None, :, None], queries + 1)
    return seen if window is None else seen & (keys > queries - window)


def choose(
    logits: mx.array,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    min_ps: Sequence[float],
    keys: Sequence[tuple[int, int]],
) -> mx.array:
    greedy = mx.argmax(logits, axis=-1).astype(mx.int32)
    sampled = [r for r, temperature in enumerate(temperatures) if temperature > 0]
    if sampled:
        rows = logits if len(sampled) == len(temperatures) else logits[mx.array(sampled)]
        scaled = rows / _column([temperatures[r] for r in sampled])
        kept = scaled >= _threshold(
            scaled,
            [top_ks[r] for r in sampled],
            [top_ps[r] for r in sampled],
            [min_ps[r] for r in sampled],
        )
        vocab = logits.shape[-1]
        noise = mx.stack([mx.random.gumbel((vocab,), key=mx.array(keys[r], mx.uint32)) for r in sampled])
        noisy = mx.argmax(mx.where(kept, scaled + noise, -mx.inf), axis=-1).astype(mx.int32)
        greedy = mx.put_along_axis(greedy, mx.array(sampled), noisy, axis=0)
    most = mx.max(logits, axis=-1)
    broken = mx.any(mx.isnan(logits), axis=-1) | mx.isinf(most)
    return mx.where(broken, -1, greedy)


def _threshold(
    scaled: mx.array, top_ks: Sequence[int], top_ps: Sequence[float], min_ps: Sequence[float]
) -> mx.array:
    """The least value [rows, 1] that each row's filters keep. They apply in the order k, p, min-p."""
    threshold = _column([-float("inf")] * len(top_ks))
    vocab = scaled.shape[-1]
    truncated = [k not in (0, vocab) or p < 1.0 for k, p in zip(top_ks, top_ps, strict=True)]
    if any(truncated):
        descending = -mx.sort(-scaled, axis=-1)
        ranks = mx.arange(vocab)[None]
        k = mx.array([[min(k or vocab, vocab)] for k in top_ks])
        top = mx.where(ranks < k, descending, -mx.inf)
        # A token stays while the probability before it is below top_p; the likeliest always stays.
        probabilities = mx.softmax(top, axis=-1, precise=True)
        before = mx.cumsum(probabilities, axis=-1) - probabilities
        stays = ((before < _column(top_ps)) | (ranks == 0)) & (top > -mx.inf)
        lowest = mx.min(mx.where(stays, descending, mx.inf), axis=-1, keepdims=True)
        threshold = mx.where(mx.array(truncated)[:, None], lowest, threshold)
    if any(p > 0 for p in min_ps):
        peak = mx.max(scaled, axis=-1, keepdims=True)
        threshold = mx.maximum(threshold, peak + mx.log(_column(min_ps)))
    return threshold


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), mx.float32)[:, None]
