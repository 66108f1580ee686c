"""The seam gives the same answers on every back end that this machine has."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from ingle.contracts.cache import ArrayView, KVView, TableView
from ingle.contracts.weights import Dense
from ingle.kernels import native, ops
from support.affine import affine


@pytest.fixture(params=["plain", "native"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "native" and not native.available():
        pytest.skip(f"the extension is not built: {native.describe()}")
    monkeypatch.setattr(native, "available", lambda: name == "native")
    return name


@pytest.mark.parametrize(
    ("bits", "group"),
    [(4, 16), (8, 16), *((bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128))],
)
def test_quantised_products_use_exact_values(backend: str, bits: int, group: int) -> None:
    weight, values = affine(24, 256, bits, group)
    packed = ops.pack_linear(weight, mx.float32, bias=mx.arange(24).astype(mx.float32))
    x = np.random.default_rng(1).normal(size=(5, 256)).astype(np.float32)
    expected = x.astype(np.float64) @ values.T + np.arange(24)
    # The native product may read activations as bfloat16: 2^-9 of each term's magnitude.
    bound = 2.0**-9 * (np.abs(x) @ np.abs(values).T) + 2e-3
    assert np.all(np.abs(np.array(ops.linear(mx.array(x), packed)) - expected) <= bound)
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


def view_of(
    backend: str, k: np.ndarray, v: np.ndarray, bases: tuple[int, ...], offsets: tuple[int, ...]
) -> KVView:
    """Keys and values [rows, kv_heads, positions, dim], the first at each row's base."""
    if backend == "plain":
        room = mx.zeros((*k.shape[:2], 192, k.shape[3]))
        keys, values = (ops.write(room, mx.array(a), [0] * len(bases)) for a in (k, v))
        return ArrayView(keys, values, bases, offsets)
    tables = [native.cpu.KVTable(1, k.shape[1], k.shape[3], False) for _ in bases]
    for table, base in zip(tables, bases, strict=True):
        table.reserve(base, base, base + k.shape[2])
    at_bases = TableView(tables, 0, bases, [])
    return TableView(tables, 0, offsets, [ops.append(at_bases, mx.array(k), mx.array(v))])


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
    view = view_of(backend, k, v, bases, offsets)
    got = ops.attention(mx.array(q), view, scale=0.3, window=window, softcap=softcap)
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


def test_spans_that_attend_both_ways(backend: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(1, 2, 5, 16)).astype(np.float32) for _ in range(3))
    view = view_of(backend, k, v, (0,), (0,))
    ends = [1, 4, 4, 4, 5]  # tokens 1 to 3 see each other
    got = ops.attention(
        mx.array(q), view, scale=0.3, window=None, softcap=None, ends=mx.array([ends], mx.int32)
    )
    for h in range(2):
        for i, end in enumerate(ends):
            weights = np.exp(k[0, h, :end].astype(np.float64) @ q[0, h, i] * 0.3)
            expected = weights / weights.sum() @ v[0, h, :end]
            np.testing.assert_allclose(np.array(got)[0, h, i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_joined_forms_say_what_their_parts_say(backend: str, softcap: float | None) -> None:
    x = mx.array(np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32))
    one, two = (ops.pack_linear(affine(24, 64, 4, 32, seed)[0], mx.float32) for seed in (1, 2))
    apart = ops.gated(ops.linear(x, one), ops.linear(x, two), "silu")
    assert mx.allclose(ops.gated_linear(x, one, two, "silu"), apart, rtol=1e-5, atol=1e-5).item()
    plain = ops.linear(x, one)
    expected = plain if softcap is None else softcap * mx.tanh(plain / softcap)
    assert mx.allclose(ops.linear(x, one, softcap), expected, rtol=1e-5, atol=1e-5).item()
    experts = ops.expert_linear(x, [one, two, one], mx.array([2, 3, 5], mx.int32))
    wanted = mx.concatenate([plain[:2], ops.linear(x, two)[2:3], plain[3:5], mx.zeros((1, 24))])
    assert mx.allclose(experts, wanted, rtol=1e-5, atol=1e-5).item()


def test_one_warning_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.warns(RuntimeWarning, match="native CPU kernels are not in use"):
        ops.warn_if_plain()
