"""Bit by bit: what a row gets does not depend on its company, its windows, or the number of threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle import compose
from ingle.contracts.cache import RowState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup
from ingle.forward import packed as packed_forward
from ingle.forward.packed import forward
from ingle.kernels import native
from support.affine import affine

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no extension: {native.describe()}")
FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


@given(
    st.sampled_from(["f32", "f16", "bf16", *((b, g) for b in (4, 5, 6, 8) for g in (16, 32, 64, 128))]),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 80),
    st.integers(1, 3),
    st.integers(0, 99),
    st.integers(1, 3),
)
def test_products(
    isa: str, form: Any, centred: bool, rows: int, n: int, size: int, seed: int, threads: int
) -> None:
    native.configure(threads=threads)
    rng = np.random.default_rng(seed)
    if isinstance(form, str):
        k = 11 * size
        dtype = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[form]
        weight = native.cpu.pack_floats(mx.array(rng.normal(size=(n, k)).astype(np.float32)).astype(dtype))
    else:
        bits, group = form
        k = group * size * (2 if group == 16 else 1)  # whole words
        w, _ = affine(n, k, bits, group, seed, centred=centred)
        weight = native.cpu.pack_codes(w.codes, w.scales, w.biases, bits, group)
    x = rng.normal(size=(rows, k)).astype(np.float32)
    together = np.array(native.cpu.linear(mx.array(x), [weight], [None]))
    native.configure(threads=1)
    for r in range(rows):
        alone = np.array(native.cpu.linear(mx.array(x[r : r + 1]), [weight], [None]))
        assert alone.tobytes() == together[r : r + 1].tobytes()
    native.configure()


@given(
    dim=st.sampled_from([16, 20, 64]),
    window=st.sampled_from([0, 5, 70]),
    halves=st.booleans(),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    groups=st.integers(1, 5),
)
def test_attention(isa: str, dim: int, window: int, halves: bool, lengths: list[int], groups: int) -> None:
    """One call over a whole sequence, or many over its pieces beside another row: the same bits."""
    rng = np.random.default_rng(sum(lengths))
    total, heads, kv_heads = sum(lengths), 2 * groups, 2
    q = rng.normal(size=(2, heads, total, dim)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, kv_heads, total, dim)).astype(np.float32)

    def run(rows: list[int], pieces: list[int]) -> np.ndarray:
        tables = [native.cpu.KVTable(1, kv_heads, dim, halves) for _ in rows]
        out, at = [], 0
        for piece in pieces:
            now = slice(at, at + piece)
            for table in tables:
                table.reserve(0, at, at + piece)
            new = (mx.array(k[rows, :, now]), mx.array(v[rows, :, now]))
            written = native.cpu.append(*new, tables, 0, [at] * len(rows), [])
            part = native.cpu.attention(
                mx.array(q[rows, :, now]), tables, 0, [at] * len(rows), [written], None, 0.2, window, 0.0
            )
            out.append(np.array(part))
            at += piece
        return np.concatenate(out, axis=2)

    whole = run([0], [total])[0]
    assert run([1, 0], lengths)[1].tobytes() == whole.tobytes()


Prompt = list[int]


def start(graph: ModelGraph, prompts: list[Prompt], cut: int) -> list[RowState]:
    """Caches after all but the last token of each prompt, computed in windows of `cut`."""
    out = []
    for prompt in prompts:
        states = graph.make_state(1)
        for at in range(0, len(prompt) - 1, cut):
            ids = mx.array([prompt[at : min(at + cut, len(prompt) - 1)]], mx.int32)
            mx.eval(forward(graph, [PhaseGroup(Phase.WINDOW, ids, states)], row_invariant=True))
        out.append(states)
    return out


def step_together(graph: ModelGraph, prompts: list[Prompt], states: list[RowState]) -> np.ndarray:
    """Logits [rows, vocab] after the last tokens, all rows in one decode group."""
    first, *others = states
    joined = first.select([0], others)
    ids = mx.array([[prompt[-1]] for prompt in prompts], mx.int32)
    hidden = forward(graph, [PhaseGroup(Phase.DECODE, ids, joined)], row_invariant=True)[0]
    return np.array(graph.logits(hidden[:, -1]))


def check_graph(graph: ModelGraph, vocab: int, longest: int) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, vocab, 2 + (longest - 2) * i // 15).tolist() for i in range(16)]
    alone = [step_together(graph, [p], start(graph, [p], 10**6))[0] for p in prompts]
    for cut in (1, 7, 64, 256):
        chosen = prompts if cut > 1 else prompts[:6]  # token by token is slow and says the same
        batch = step_together(graph, chosen, start(graph, chosen, cut))
        for row, reference in zip(batch, alone, strict=False):
            assert row.tobytes() == reference.tobytes()


@pytest.mark.parametrize("name", ["llama", "llama3", "llama_bias", "gemma3"])
def test_logits_end_to_end(isa: str, name: str) -> None:
    graph, config = compose.load_graph(FIXTURES / name)
    check_graph(graph, config.vocab_size, 60)


@pytest.mark.model
def test_logits_of_the_default_model(default_model_path: Path) -> None:
    before = native.cpu.isa()
    native.configure(isa=native.cpu.isas()[0])
    graph, config = compose.load_graph(default_model_path)
    check_graph(graph, config.vocab_size, 150)
    native.configure(isa=before)


@pytest.fixture(params=["llama", "llama_bias", "gemma3"], scope="module")
def graph(request: pytest.FixtureRequest) -> ModelGraph:
    return compose.load_graph(FIXTURES / request.param)[0]


@settings(max_examples=20)
@given(data=st.data())
def test_whole_layers_give_the_bits_of_their_parts(isa: str, graph: ModelGraph, data: st.DataObject) -> None:
    """A decode batch, a window and a verify group in one pass: fused layers, or operation by operation."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))

    def ids(rows: int, length: int) -> mx.array:
        return mx.array(rng.integers(3, 100, (rows, length)).astype(np.int32))

    past = ids(2, lengths[0])
    groups = [(Phase.DECODE, ids(2, 1)), *((Phase.WINDOW, ids(1, n)) for n in lengths[1:])]

    def run() -> list[mx.array]:
        states = graph.make_state(2)
        forward(graph, [PhaseGroup(Phase.WINDOW, past, states)], row_invariant=True)
        made = [
            PhaseGroup(phase, i, states if phase is Phase.DECODE else graph.make_state(1))
            for phase, i in groups
        ]
        return forward(graph, made, row_invariant=True)

    fused = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_forward, "_fused_span", lambda *args, **options: [])
        apart = run()
    for a, b in zip(fused, apart, strict=True):
        assert np.array(a).tobytes() == np.array(b).tobytes()
