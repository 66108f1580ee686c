"""The seam gives the same answers on every back end that this machine has."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from ingle.contracts.cache import KVView
from ingle.contracts.weights import Affine, Dense
from ingle.kernels import native, ops


@pytest.fixture(params=["plain", "native"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "native" and not native.available():
        pytest.skip(f"the extension is not built: {native.describe()}")
    monkeypatch.setattr(native, "available", lambda: name == "native")
    return name


def affine(n: int, k: int, bits: int, group: int, seed: int = 0) -> tuple[Affine, np.ndarray]:
    """A random quantised matrix and its float64 values."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**bits, (n, k), dtype=np.uint32)
    scales = rng.normal(0, 0.1, (n, k // group)).astype(np.float16)
    biases = rng.normal(0, 0.1, (n, k // group)).astype(np.float16)
    values = codes * np.repeat(scales.astype(np.float64), group, 1) + np.repeat(
        biases.astype(np.float64), group, 1
    )
    stream = np.packbits(
        ((codes[:, :, None] >> np.arange(bits, dtype=np.uint32)) & 1).astype(np.uint8).reshape(n, -1),
        axis=1,
        bitorder="little",
    )
    return Affine(mx.array(stream.view(np.uint32)), mx.array(scales), mx.array(biases), bits, group), values


@pytest.mark.parametrize(
    ("bits", "group"),
    [(4, 16), (8, 16), *((bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128))],
)
def test_quantised_products_use_exact_values(backend: str, bits: int, group: int) -> None:
    weight, values = affine(24, 256, bits, group)
    packed = ops.pack_linear(weight, mx.float32, bias=mx.arange(24).astype(mx.float32))
    x = np.random.default_rng(1).normal(size=(5, 256)).astype(np.float32)
    expected = x.astype(np.float64) @ values.T + np.arange(24)
    np.testing.assert_allclose(np.array(ops.linear(mx.array(x), packed)), expected, rtol=1e-4, atol=2e-3)
    rows = ops.embed(mx.array([3, 0, 23]), packed)
    np.testing.assert_allclose(np.array(rows), values[[3, 0, 23]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_dense_products(backend: str, dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(0)
    w = mx.array(rng.normal(size=(7, 33)).astype(np.float32)).astype(dtype)
    x = mx.array(rng.normal(size=(2, 3, 33)).astype(np.float32))
    got = ops.linear(x, ops.pack_linear(Dense(w), mx.float32))
    expected = np.array(x, np.float64) @ np.array(w.astype(mx.float32), np.float64).T
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(backend: str, activation: ops.Activation) -> None:
    rng = np.random.default_rng(0)
    gate, up = rng.normal(0, 4, (2, 3, 50)).astype(np.float32)
    g = gate.astype(np.float64)
    if activation == "silu":
        expected = g / (1 + np.exp(-g)) * up
    else:
        expected = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * up
    got = ops.gated(mx.array(gate), mx.array(up), activation)
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-5, atol=1e-6)


def test_norm_and_rotation(backend: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 16)).astype(np.float32)
    w = rng.normal(size=16).astype(np.float32)
    d = x.astype(np.float64)
    expected = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(
        np.array(ops.rms_norm(mx.array(x), mx.array(w), 1e-5)), expected, rtol=1e-5, atol=1e-6
    )
    inv_freq = (1.0 / 100.0 ** (np.arange(8) / 8)).astype(np.float32)
    positions = np.array([5, 900])[:, None] + np.arange(4)
    angles = (positions[:, None, :, None].astype(np.float32) * inv_freq).astype(np.float64)
    a, b = d[..., :8], d[..., 8:]
    turned = np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1
    )
    got = ops.rope(mx.array(x), (5, 900), mx.array(inv_freq), 1.5)
    np.testing.assert_allclose(np.array(got), 1.5 * turned, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("length", [1, 6])
def test_attention_over_ragged_rows(
    backend: str, window: int | None, softcap: float | None, length: int
) -> None:
    rng = np.random.default_rng(2)
    rows, heads, kv_heads, dim, columns = 3, 4, 2, 16, 160
    bases, offsets = (0, 64, 128), (30, 64 + 90, 128 + 0 + 12)
    q = rng.normal(size=(rows, heads, length, dim)).astype(np.float32)
    k, v = rng.normal(size=(2, rows, kv_heads, columns, dim)).astype(np.float32)
    got = ops.attention(
        mx.array(q),
        KVView(mx.array(k), mx.array(v), bases, offsets),
        scale=0.3,
        window=window,
        softcap=softcap,
    )
    expected = np.zeros(q.shape)
    for r in range(rows):
        for h in range(heads):
            for i in range(length):
                position = offsets[r] + i
                first = 0 if window is None else max(0, position - window + 1)
                span = slice(max(0, first - bases[r]), position - bases[r] + 1)
                group = h * kv_heads // heads
                scores = k[r, group, span].astype(np.float64) @ q[r, h, i] * 0.3
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                expected[r, h, i] = weights / weights.sum() @ v[r, group, span]
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-4, atol=1e-5)


def test_one_warning_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.warns(RuntimeWarning, match="native CPU kernels are not in use"):
        ops.warn_if_plain()
