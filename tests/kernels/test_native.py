"""The native operations against float64, on every instruction set that this CPU has."""

from __future__ import annotations

import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.errors import ConfigError
from ingle.kernels import native
from support.affine import affine

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no extension: {native.describe()}")
FORMATS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (16, 32, 64, 128)]
EPS = 2.0**-24  # half a unit in the last place of 1.0 in float32


def pack(n: int, k: int, bits: int, group: int, seed: int = 0, **kind: bool) -> tuple[Any, np.ndarray]:
    weight, values = affine(n, k, bits, group, seed, **kind)
    return native.cpu.pack_codes(weight.codes, weight.scales, weight.biases, bits, group), values


def linear(x: np.ndarray | mx.array, weight: Any, **options: Any) -> np.ndarray:
    return np.array(native.cpu.linear(mx.array(x), [weight], [None], **options))


def product_bound(isa: str, x: np.ndarray, values: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """What rounding may cost. AVX-512 reads activations as bfloat16 (relative error 2^-9 each); every
    path sums K products of codes and of biases (`parts`: their magnitudes) in float32."""
    magnitude = np.abs(x).astype(np.float64)
    rounding = 2.0**-9 * (magnitude @ np.abs(values).T) if isa == "avx512" else 0.0
    return rounding + x.shape[1] * EPS * (magnitude @ parts.T) + 1e-30


@given(
    st.sampled_from(FORMATS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 19),
    st.integers(1, 70),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_products_with_codes(
    isa: str, form: tuple[int, int], centred: bool, wide: bool, rows: int, n: int, groups: int, seed: int
) -> None:
    bits, group = form
    k = group * groups * (2 if group == 16 else 1)  # whole words
    packed, values = pack(n, k, bits, group, seed, centred=centred, wide=wide)
    x = np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)
    got = linear(x, packed)
    assert got.shape == (rows, n)
    parts = np.abs(values) + 2.0**bits * 0.5  # codes reach 2^bits - 1, scales and biases some 0.4
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= product_bound(isa, x, values, parts))


@given(
    st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    st.integers(0, 19),
    st.integers(1, 70),
    st.integers(1, 90),
)
def test_products_with_floats(isa: str, dtype: mx.Dtype, rows: int, n: int, k: int) -> None:
    """K and N need not be multiples of anything; half-precision weights are read exactly."""
    rng = np.random.default_rng(rows + n + k)
    weight = mx.array(rng.normal(size=(n, k)).astype(np.float32)).astype(dtype)
    values = np.array(weight.astype(mx.float32), np.float64)
    x = rng.normal(size=(rows, k)).astype(np.float32)
    got = linear(x, native.cpu.pack_floats(weight))
    bound = k * EPS * (np.abs(x).astype(np.float64) @ np.abs(values).T) + 1e-30
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound)


def test_half_precision_numbers_are_read_exactly(isa: str) -> None:
    """All of them: subnormals, both zeros, infinities, NaN."""
    every = np.arange(2**16, dtype=np.uint16)
    for dtype, numbers in (
        (mx.float16, every.view(np.float16).astype(np.float32)),
        (mx.bfloat16, (every.astype(np.uint32) << 16).view(np.float32)),
    ):
        weight = mx.array(every).view(dtype).reshape(-1, 1)
        packed = native.cpu.pack_floats(weight)
        with np.errstate(invalid="ignore"):
            for got in (
                linear(np.ones((1, 1), np.float32), packed)[0],
                np.array(native.cpu.embed(mx.arange(2**16, dtype=mx.int32), packed, 1.0))[:, 0],
            ):
                np.testing.assert_array_equal(got, numbers)


@pytest.mark.parametrize(("bits", "group"), FORMATS)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_packing_loses_nothing(bits: int, group: int, centred: bool, wide: bool) -> None:
    weight, _ = affine(37, 256, bits, group, 3, centred=centred, wide=wide)
    packed = native.cpu.pack_codes(weight.codes, weight.scales, weight.biases, bits, group)
    rows = np.array(native.cpu.embed(mx.arange(37, dtype=mx.int32), packed, 1.0))
    words = np.array(weight.codes).view(np.uint8)
    stream = np.unpackbits(words, axis=1, bitorder="little").reshape(37, 256, bits)
    codes = stream @ (1 << np.arange(bits)).astype(np.float32)
    scales, biases = (
        np.repeat(np.array(a.astype(mx.float32)), group, 1) for a in (weight.scales, weight.biases)
    )
    np.testing.assert_array_equal(rows, scales * codes + biases)


@pytest.mark.parametrize(("bits", "most"), [(4, 5.1), (5, 6.1), (6, 7.1), (8, 9.1)])
def test_packed_weights_are_small(bits: int, most: float) -> None:
    """Bits per weight with groups of 32 and half-precision scales and biases."""
    packed, _ = pack(64, 576, bits, 32)
    assert packed.nbytes * 8 / (64 * 576) <= most
    assert pack(64, 576, bits, 32, centred=True)[0].nbytes * 8 / (64 * 576) <= most - 0.5


def test_epilogues(isa: str) -> None:
    """Weights side by side, biases, a scaled residual, a soft cap, gates: as the parts say."""
    rng = np.random.default_rng(5)
    x, residual = rng.normal(size=(9, 64)).astype(np.float32), rng.normal(size=(9, 60)).astype(np.float32)
    one, two = pack(40, 64, 4, 32)[0], pack(20, 64, 8, 32)[0]
    bias = mx.array(rng.normal(size=20).astype(np.float32))
    parts = np.concatenate([linear(x, one), linear(x, two) + np.array(bias)], axis=1)
    cpu = native.cpu
    both = cpu.linear(mx.array(x), [one, two], [None, bias], mx.array(residual), 0.5)
    np.testing.assert_array_equal(np.array(both), residual + parts * np.float32(0.5))
    capped = cpu.linear(mx.array(x), [one, two], [None, bias], softcap=2.0)
    np.testing.assert_allclose(np.array(capped), 2 * np.tanh(parts / 2), rtol=1e-5, atol=1e-6)
    gate, up = pack(40, 64, 4, 32, 1)[0], pack(40, 64, 5, 32, 2)[0]
    for activation in ("silu", "gelu_tanh"):
        apart = cpu.gate(mx.array(linear(x, gate)), mx.array(linear(x, up)), activation)
        joined = cpu.gated_linear(mx.array(x), gate, up, None, None, activation)
        np.testing.assert_array_equal(np.array(joined), np.array(apart))


def test_experts_take_their_own_rows(isa: str) -> None:
    experts = [pack(33, 64, 4, 32, seed)[0] for seed in range(4)]
    x = np.random.default_rng(0).normal(size=(90, 64)).astype(np.float32)
    got = np.array(native.cpu.expert_linear(mx.array(x), experts, mx.array([7, 7, 80, 85], mx.int32)))
    for expert, (first, last) in enumerate([(0, 7), (7, 7), (7, 80), (80, 85)]):
        np.testing.assert_array_equal(got[first:last], linear(x[first:last], experts[expert]))
    assert not got[85:].any()


def test_rows_of_an_embedding(isa: str) -> None:
    packed, values = pack(37, 64, 4, 32)
    ids = mx.array([3, 36, 0, -1, 37], mx.int32)
    rows = np.array(native.cpu.embed(ids, packed, 2.0))
    np.testing.assert_allclose(rows[:3], 2 * values[[3, 36, 0]], rtol=1e-5, atol=1e-5)
    assert not rows[3:].any()  # never past the table


@pytest.mark.parametrize("n", [1, 3, 16, 50, 576])
def test_norms_gates_and_rotations(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(0, 3, (2, 5, n)).astype(np.float32)
    w = rng.normal(size=n).astype(np.float32)
    d = x.astype(np.float64)
    normed = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w
    got = np.array(native.cpu.rms_norm(mx.array(x), mx.array(w), 1e-5))
    np.testing.assert_allclose(got, normed, rtol=2e-6, atol=1e-7)
    silu = d / (1 + np.exp(-d)) * y
    np.testing.assert_allclose(
        np.array(native.cpu.gate(mx.array(x), mx.array(y), "silu")), silu, rtol=2e-6, atol=1e-7
    )
    gelu = 0.5 * d * (1 + np.tanh(np.sqrt(2 / np.pi) * (d + 0.044715 * d**3))) * y
    got = np.array(native.cpu.gate(mx.array(x), mx.array(y), "gelu_tanh"))
    np.testing.assert_allclose(got, gelu, rtol=1e-5, atol=3e-6)


def test_functions_over_their_whole_range(isa: str) -> None:
    """sigmoid and tanh (by way of the gate and the soft cap) from underflow to saturation."""
    x = np.concatenate([np.linspace(-120, 120, 4001), np.linspace(-0.1, 0.1, 2001), [0.0, 1e-30, -1e-30]])
    x = x.astype(np.float32)
    d = x.astype(np.float64)
    one = np.ones_like(x)
    got = np.array(native.cpu.gate(mx.array(x), mx.array(one), "silu"))
    np.testing.assert_allclose(got, d / (1 + np.exp(-d)), rtol=1e-6, atol=1e-35)
    eye = native.cpu.pack_floats(mx.ones((1, 1)))
    capped = linear(x[:, None], eye, softcap=1.0)[:, 0]
    np.testing.assert_allclose(capped, np.tanh(d), rtol=1e-6, atol=1e-30)


@given(
    dim=st.sampled_from([2, 8, 20, 64, 80]),
    groups=st.integers(1, 3),
    length=st.sampled_from([1, 2, 5, 40]),
    window=st.sampled_from([0, 1, 7, 70]),
    softcap=st.sampled_from([0.0, 5.0]),
    halves=st.booleans(),
    both_ways=st.booleans(),
    starts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 130)), min_size=1, max_size=3),
)
def test_attention_over_ragged_rows(
    isa: str,
    dim: int,
    groups: int,
    length: int,
    window: int,
    softcap: float,
    halves: bool,
    both_ways: bool,
    starts: list[tuple[int, int]],
) -> None:
    rng = np.random.default_rng(length + dim)
    rows, kv_heads, columns = len(starts), 2, 192
    heads = kv_heads * groups
    bases = [64 * block for block, _ in starts]
    offsets = [64 * block + more for block, more in starts]
    q = rng.normal(size=(rows, heads, length, dim)).astype(np.float32)
    k, v = rng.normal(size=(2, rows, kv_heads, columns, dim)).astype(np.float32)
    tables = [native.cpu.KVTable(3, kv_heads, dim, halves) for _ in starts]
    for table, base in zip(tables, bases, strict=True):
        table.reserve(base, base, base + columns)
        nothing = mx.full((1, kv_heads, columns, dim), mx.nan)
        mx.eval(native.cpu.append(nothing, nothing, [table], 1, [base], []))  # only what is seen counts
    last = max(more for _, more in starts) + length
    written = native.cpu.append(mx.array(k[:, :, :last]), mx.array(v[:, :, :last]), tables, 1, bases, [])
    if halves:
        k, v = (np.array(mx.array(a).astype(mx.bfloat16).astype(mx.float32)) for a in (k, v))
    positions = np.array(offsets)[:, None] + np.arange(length)
    ends = np.minimum(positions + rng.integers(1, 9, positions.shape), np.array(bases)[:, None] + last)
    ends = np.maximum(ends, positions + 1).astype(np.int32) if both_ways else (positions + 1).astype(np.int32)
    got = native.cpu.attention(
        mx.array(q),
        tables,
        1,
        offsets,
        [written],
        mx.array(ends) if both_ways else None,
        0.3,
        window,
        softcap,
    )
    for r in range(rows):
        for h in range(heads):
            for i in range(length):
                first = max(bases[r], positions[r, i] - window + 1) if window else bases[r]
                span = slice(first - bases[r], ends[r, i] - bases[r])
                scores = k[r, h // groups, span].astype(np.float64) @ q[r, h, i] * 0.3
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                expected = weights / weights.sum() @ v[r, h // groups, span]
                np.testing.assert_allclose(np.array(got)[r, h, i], expected, rtol=2e-5, atol=2e-6)


def filled(start: int, length: int, table: native.cpu.KVTable | None = None) -> native.cpu.KVTable:
    """A table whose every key at position p is p, and every value -p."""
    table = table or native.cpu.KVTable(2, 1, 4, False)
    table.reserve(0, start, start + length)
    positions = mx.broadcast_to(
        mx.arange(start, start + length, dtype=mx.float32)[None, None, :, None], (1, 1, length, 4)
    )
    for layer in range(2):
        mx.eval(native.cpu.append(positions, -positions, [table], layer, [start], []))
    return table


def held(table: native.cpu.KVTable, end: int) -> list[float]:
    keys, values = native.cpu.contents(table, 1, table.first * 64, end)
    assert mx.array_equal(keys, -values).item()
    return np.array(keys)[0, :, 0].tolist()


def test_tables_share_blocks_and_copy_what_is_written_to(isa: str) -> None:
    before = native.cpu.kv_bytes()
    table = filled(0, 100)
    one = table.block_bytes
    assert native.cpu.kv_bytes() - before == 2 * one
    copy = table.copy()
    assert native.cpu.kv_bytes() - before == 2 * one, "nothing is copied yet"
    filled(80, 5, copy)
    assert native.cpu.kv_bytes() - before == 3 * one, "only the block that was written to"
    filled(100, 30, table)
    assert held(table, 130) == list(range(130))
    assert held(copy, 85) == list(range(85))
    table.reserve(70, 130, 130)  # a window has moved on
    assert (table.first, table.end) == (1, 3)
    assert held(table, 130) == list(range(64, 130))
    table.cut(64)
    assert (table.first, table.end) == (1, 1)
    del table, copy
    assert native.cpu.kv_bytes() == before


def test_adopted_blocks_never_change(isa: str) -> None:
    source = filled(0, 128)
    block = source.share(1)
    data = bytes(block)
    row = source.adopt(1, [block])
    assert (row.first, row.end) == (1, 2)
    filled(128, 40, row)
    row.reserve(64, 100, 128)  # taken back into the shared block: this row gets its own
    assert bytes(block) == data
    again = source.block_from(data)
    source.replace(1, again)
    assert held(source, 128) == list(range(128))
    with pytest.raises(ValueError, match=f"a block has {len(data)} bytes, got 3"):
        source.block_from(b"abc")
    with pytest.raises(ValueError, match="another shape"):
        native.cpu.KVTable(1, 1, 4, False).adopt(0, [block])
    with pytest.raises(ValueError, match="block 2 is not held"):
        source.share(2)
    with pytest.raises(ValueError, match="position 0 is gone"):
        row.reserve(0, 0, 10)
    with pytest.raises(ValueError, match="cannot reserve positions 400 to 401"):
        source.reserve(0, 400, 401)


@pytest.mark.parametrize("vocab", [1, 2, 5, 97, 1000, 4097])
def test_noise_is_that_of_the_plain_path(isa: str, vocab: int) -> None:
    """With equal logits the token is where the noise is greatest: Threefry's layout, odd sizes too."""
    keys = [(7, seed) for seed in range(40)]
    got = native.cpu.sample(mx.zeros((40, vocab)), [native.cpu.Draw(1.0, 0, 1.0, 0.0, *key) for key in keys])
    noise = [mx.random.gumbel((vocab,), key=mx.array(key, mx.uint32)) for key in keys]
    tokens: Any = got.tolist()
    assert tokens == [mx.argmax(n).item() for n in noise]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.2, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 40, 5000, 10**6]),
    st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.sampled_from([0.5, 3.0, 30.0]),
    st.booleans(),
)
def test_choices_are_those_of_the_plain_path(
    isa: str, seed: int, temperature: float, k: int, p: float, least: float, spread: float, ties: bool
) -> None:
    from ingle.kernels import plain

    logits = np.random.default_rng(seed).normal(0, spread, (2, 5003)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    logits[1, ::3] = -np.inf  # masked tokens
    rows = mx.array(logits)
    native_choice = native.cpu.sample(rows, [native.cpu.Draw(temperature, k, p, least, 3, seed)] * 2)
    plain_choice = plain.choose(rows, [temperature] * 2, [k] * 2, [p] * 2, [least] * 2, [(3, seed)] * 2)
    if native_choice.tolist() != plain_choice.tolist():
        # Rounding may move the edge of top-p by a token; then the two chose on either side of it.
        assert 0 < p < 1
        nearly = [
            plain.choose(rows, [temperature] * 2, [k] * 2, [p * f] * 2, [least] * 2, [(3, seed)] * 2)
            for f in (0.9999, 1.0001)
        ]
        assert native_choice.tolist() in [n.tolist() for n in nearly]


def test_rows_without_numbers_are_reported(isa: str) -> None:
    logits = np.zeros((6, 100), np.float32)
    logits[1, 50], logits[2, 99], logits[3, 0], logits[5] = np.nan, np.inf, -np.inf, -np.inf
    for temperature in (0.0, 1.0):
        draws = [native.cpu.Draw(temperature, 5, 0.9, 0.1, 1, 2)] * 6
        tokens: Any = native.cpu.sample(mx.array(logits), draws).tolist()
        assert [t < 0 for t in tokens] == [False, True, True, False, False, True]


def test_strange_numbers_stay_in_their_row(isa: str) -> None:
    packed, _ = pack(40, 64, 4, 32)
    x = np.ones((12, 64), np.float32)
    good = linear(x, packed)
    x[3, 5], x[7, 0], x[9, 1], x[10] = np.nan, np.inf, 3e38, 1e-42
    got = linear(x, packed)
    assert not np.isfinite(got[[3, 7]]).any()
    assert np.isfinite(got[10]).all()
    kept = [0, 1, 2, 4, 5, 6, 8, 11]
    np.testing.assert_array_equal(got[kept], good[kept])
    broken = np.array(native.cpu.rms_norm(mx.array(x), mx.ones(64), 1e-5))
    assert np.isnan(broken[3]).all()
    assert np.isfinite(broken[kept]).all()


def test_views_threads_and_many_graphs(isa: str) -> None:
    packed, values = pack(70, 64, 4, 32)
    wide = mx.array(np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32))
    strided = wide.T[::2]
    expected = np.array(strided, np.float64) @ values.T
    single = [np.array(native.cpu.linear(strided * s, [packed], [None])) for s in (1.0, 2.0, 0.5)]
    np.testing.assert_allclose(single[0], expected, rtol=1e-2, atol=3e-2)
    for threads in (1, 2, 3):
        native.configure(threads=threads)
        graphs = [native.cpu.linear(strided * s, [packed], [None]) for s in (1.0, 2.0, 0.5)]
        mx.async_eval(*graphs)
        for graph, alone in zip(graphs, single, strict=True):
            np.testing.assert_array_equal(np.array(graph), alone)
    native.configure()


def test_several_threads_evaluate_at_once(isa: str) -> None:
    packed, _ = pack(640, 64, 4, 32)
    x = np.random.default_rng(0).normal(size=(33, 64)).astype(np.float32)
    expected = linear(x, packed)
    wrong: list[int] = []

    def work(number: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            for _ in range(20):
                if not np.array_equal(linear(x, packed), expected):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_unaligned_memory(isa: str) -> None:
    packed, _ = pack(40, 64, 4, 32)
    x = np.random.default_rng(0).normal(size=4 * 64 + 3).astype(np.float32)
    for shift in range(4):
        view = mx.array(x)[shift : shift + 4 * 64].reshape(4, 64)
        np.testing.assert_array_equal(linear(view, packed), linear(np.array(view), packed))


def _free_memory_gib() -> float:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20
    except OSError:
        return 0.0


@pytest.mark.skipif(_free_memory_gib() < 12, reason="needs 12 GiB of free memory")
def test_offsets_past_four_gibibytes() -> None:
    packed, _ = pack(16400, 32, 4, 32)
    rows = 66_000  # times 16,400 floats: 4.03 GiB
    x = np.zeros((rows, 32), np.float32)
    x[-1] = np.random.default_rng(0).normal(size=32)
    out = native.cpu.linear(mx.array(x), [packed], [None])
    assert out.nbytes > 2**32
    np.testing.assert_array_equal(np.array(out[-1]), linear(x[-1:], packed)[0])
    assert not out[-2].any().item()
    del out
    mx.clear_cache()


def test_what_does_not_fit_is_named() -> None:
    weight, _ = affine(4, 64, 4, 32)
    packed, _ = pack(4, 64, 4, 32)
    cpu = native.cpu
    x, table = mx.ones((2, 64)), cpu.KVTable(1, 2, 8, False)
    table.reserve(0, 0, 64)
    q = mx.zeros((1, 4, 1, 8))
    calls: list[tuple[Any, str]] = [
        (lambda: cpu.pack_codes(weight.codes, weight.scales, weight.biases, 7, 32), "bits is 7"),
        (lambda: cpu.pack_codes(weight.codes, weight.scales, weight.biases, 4, 48), "groups of 48"),
        (lambda: cpu.pack_codes(weight.codes, weight.scales[:3], weight.biases, 4, 32), r"scales \[3, 2\]"),
        (lambda: cpu.pack_codes(weight.scales, weight.scales, weight.biases, 4, 32), "uint32"),
        (lambda: cpu.pack_floats(mx.ones((3,))), r"values must be .* got \[3\]"),
        (lambda: cpu.linear(x.astype(mx.float16), [packed], [None]), "x has the wrong dtype"),
        (lambda: cpu.linear(mx.ones((2, 32)), [packed], [None]), r"x \[2, 32\] .* 64 inputs"),
        (lambda: cpu.linear(x, [packed], [mx.ones(5)]), r"bias \[5\] does not fit 4 outputs"),
        (lambda: cpu.linear(x, [packed], [None], mx.ones((2, 5))), r"residual \[2, 5\]"),
        (lambda: cpu.gate(x, x[:1], "silu"), r"\[2, 64\] and \[1, 64\]"),
        (lambda: cpu.gate(x, x, "relu"), "activation 'relu' is not known"),
        (lambda: cpu.expert_linear(x, [packed], mx.array([1, 2], mx.int32)), r"ends .* got \[2\]"),
        (lambda: cpu.embed(mx.array([1.0]), packed, 1.0), "ids must be int32"),
        (lambda: cpu.rope(mx.zeros((1, 1, 1, 8)), [0], mx.ones(3), 1.0), r"inv_freq \[3\]"),
        (
            lambda: cpu.append(q[:, :2], q[:, :2], [table], 0, [64], []),
            "64 to 65 do not fit a table of 0 to 64",
        ),
        (lambda: cpu.append(q[:, :2], q, [table], 0, [0], []), r"values \[1, 4, 1, 8\] must both be"),
        (lambda: cpu.append(q, q, [table], 0, [0], []), "layer 0 of 4 heads of 8 does not fit"),
        (lambda: cpu.append(q[:, :2], q[:, :2], [table], 1, [0], []), "layer 1 of 2 heads of 8 does not fit"),
        (lambda: cpu.attention(q, [table], 0, [64], [], None, 1.0, 0, 0.0), "do not fit a table of 0 to 64"),
        (lambda: cpu.attention(q, [], 0, [], [], None, 1.0, 0, 0.0), r"\[rows, heads, .* got \[1, 4, 1, 8\]"),
        (
            lambda: cpu.attention(q[:, :3], [table], 0, [0], [], None, 1.0, 0, 0.0),
            "3 query heads do not divide",
        ),
        (lambda: cpu.sample(x, []), r"logits must be float32 \[0, vocab\], got \[2, 64\]"),
        (lambda: cpu.decoder_layers([], x, [], [], [], [], [], None, []), "no layers"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ConfigError, match="threads must be 1 to 256, got 0"):
        native.configure(threads=0)
    with pytest.raises(ConfigError, match="'sse9' is not available"):
        native.configure(isa="sse9")
