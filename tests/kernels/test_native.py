"""The native product: exact enough, the same bits in any company, and careful with what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.errors import ConfigError
from ingle.kernels import native

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no extension: {native.describe()}")
ISAS = ("avx512", "avx2", "portable")
FORMATS = [(4, 32), (4, 64), (4, 128), (8, 16), (8, 32), (8, 64), (8, 128)]


@pytest.fixture(params=ISAS, scope="module")
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        native.configure(isa=request.param)
    except ConfigError:
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    native.configure(isa=native._cpu.isas()[0] if native._cpu else None)


def weight(
    n: int, k: int, bits: int, group: int, seed: int
) -> tuple[tuple[mx.array, mx.array, mx.array], np.ndarray]:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2**bits, (n, k), dtype=np.uint8)
    scales, biases = random.normal(0, 0.05, (2, n, k // group)).astype(np.float32)
    values = codes * np.repeat(scales.astype(np.float64), group, 1) + np.repeat(
        biases.astype(np.float64), group, 1
    )
    packed = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
    return (mx.array(packed.view("<u4")), mx.array(scales), mx.array(biases)), values


@given(
    st.sampled_from(FORMATS), st.integers(0, 19), st.integers(1, 70), st.integers(1, 4), st.integers(0, 99)
)
def test_every_row_is_exact_and_keeps_its_bits(
    isa: str, form: tuple[int, int], rows: int, n: int, groups: int, seed: int
) -> None:
    bits, group = form
    k = group * groups
    arrays, values = weight(n, k, bits, group, seed)
    x = np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)
    together = np.array(native.affine_linear(mx.array(x), *arrays, bits, group))
    assert together.shape == (rows, n)
    # float32 sums of k products: the usual bound with room for the grouping.
    bound = 4e-7 * k * (np.abs(x).astype(np.float64) @ np.abs(values).T + 1e-30) / np.sqrt(k) * 4 + 1e-5 * k
    assert np.all(np.abs(together - x.astype(np.float64) @ values.T) <= bound)
    for r in range(rows):
        alone = np.array(native.affine_linear(mx.array(x[r]), *arrays, bits, group))
        assert alone.tobytes() == together[r].tobytes()


def test_strange_numbers_stay_in_their_row(isa: str) -> None:
    arrays, _ = weight(40, 64, 4, 32, 0)
    x = np.ones((12, 64), np.float32)
    good = np.array(native.affine_linear(mx.array(x), *arrays, 4, 32))
    x[3, 5], x[7, 0], x[9, 1] = np.nan, np.inf, 3e38
    got = np.array(native.affine_linear(mx.array(x), *arrays, 4, 32))
    assert not np.isfinite(got[[3, 7]]).any()
    assert np.array_equal(np.delete(got, [3, 7, 9], 0), np.delete(good, [3, 7, 9], 0))


def test_views_threads_and_many_graphs(isa: str) -> None:
    arrays, values = weight(70, 64, 4, 32, 1)
    wide = mx.array(np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32))
    strided = wide.T[::2]
    expected = np.array(strided, np.float64) @ values.T
    for threads in (1, 2, 3):
        native.configure(threads=threads)
        graphs = [native.affine_linear(strided * s, *arrays, 4, 32) for s in (1.0, 2.0, 0.5)]
        mx.async_eval(*graphs)
        for graph, s in zip(graphs, (1.0, 2.0, 0.5), strict=True):
            np.testing.assert_allclose(np.array(graph), expected * s, rtol=1e-4, atol=1e-4)
    native.configure()


def test_what_does_not_fit_is_named() -> None:
    arrays, _ = weight(4, 64, 4, 32, 0)
    x = mx.ones((2, 64))
    args: Any
    for args, message in (
        ((x, *arrays, 5, 32), "bits is 5"),
        ((x, *arrays, 4, 16), "groups of 16"),
        ((x.astype(mx.float16), *arrays, 4, 32), "float32"),
        ((mx.ones((2, 32)), *arrays, 4, 32), r"\[2, 32\] does not fit codes \[4, 8\]"),
        ((x, arrays[0], arrays[1][:3], arrays[2], 4, 32), r"scales \[3, 2\]"),
        ((x, arrays[1], arrays[1], arrays[2], 4, 32), "uint32"),
    ):
        with pytest.raises(ValueError, match=message):
            native.affine_linear(*args)
    with pytest.raises(ConfigError, match="threads must be 1 to 256, got 0"):
        native.configure(threads=0)
    with pytest.raises(ConfigError, match="'sse9' is not available"):
        native.configure(isa="sse9")
