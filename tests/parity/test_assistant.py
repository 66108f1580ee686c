"""Assistants draft what the reference drafts, in batches of rows of any length, and accept what it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ingle import compose
from ingle.cache.arrays import ArrayState
from ingle.contracts.cache import RowState
from ingle.contracts.graph import AssistantGraph, ModelGraph, Phase, PhaseGroup
from ingle.contracts.request import Request, SamplingParams
from ingle.engine.handle import EngineInfo
from ingle.engine.rows import Row
from ingle.errors import ConfigError
from ingle.forward.packed import reader
from ingle.kernels import ops
from ingle.models.gemma4_assistant import Gemma4Assistant, last_owning
from ingle.speculative.assistant import AssistantSource
from ingle.speculative.source import DraftBatch, Proposal
from ingle.weights.checkpoint import open_checkpoint
from support.collect import Collector
from support.drafting import FixedPolicy
from support.gemma4 import prompt
from support.stepped import SteppedEngine

HERE = Path(__file__).parent
BUNDLED = Path(compose.__file__).parent / "bundled"
NAMES = ["gemma4_e", "gemma4_dense", "gemma4_flat"]
SIZES, STEPS = (5, 12, 23, 40), 6  # the window is 16
BATCHES = [(5,), (40,), (12, 5), (40, 5, 23), (5, 40, 12, 23)]


class Pair:
    def __init__(self, name: str) -> None:
        self.name = name
        self.golden: dict[str, Any] = dict(np.load(HERE / "goldens" / f"{name}_assistant.npz"))
        self.target, self.config = compose.load_graph(HERE / "fixtures" / name, "float32")
        checkpoint = open_checkpoint(HERE / "fixtures" / f"{name}_assistant")
        self.assistant = Gemma4Assistant(checkpoint.config, checkpoint.weights, mx.float32, self.config)

    def batch(self, sizes: Sequence[int], form: str = "own") -> DraftBatch:
        """Rows of so many entries, with the reference's own KV where the assistant reads."""
        rows: list[RowState] = []
        members: list[Row] = []
        for size in sizes:
            row = fresh(self, form)
            row.reserve(size)
            for layer, (kind, _) in enumerate(row.layout.places):
                k = row.layout.kinds[kind]
                name = self.config.layer_kinds[layer]
                keys = values = mx.zeros((1, k.kv_heads, size, k.head_dim))
                if layer == last_owning(self.config, name):
                    keys, values = (mx.array(self.golden[f"{size}.{name}_attention.{x}"])[None] for x in "kv")
                row.write(layer, keys, values)
            row.advance([size])
            rows.append(row)
            request = Request(
                id=str(size),
                prompt=tuple(prompt(size)),
                sampling=SamplingParams(temperature=0.0, max_tokens=50),
            )
            members.append(
                Row(request, Collector(), computed=size, output=[int(self.golden[f"{size}.newest"])])
            )
        hidden = mx.array(np.stack([self.golden[f"{size}.hidden"] for size in sizes]))
        return DraftBatch(members, rows[0].select([0], rows[1:]), hidden)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def fresh(pair: Pair, form: str) -> RowState:
    return pair.target.make_state(1) if form == "own" else ArrayState(pair.target.layout, 1, mx.float32)


@pytest.mark.parametrize("sizes", BATCHES, ids=str)
@pytest.mark.parametrize("form", ["own", "arrays"])
def test_every_step_is_the_reference(pair: Pair, sizes: tuple[int, ...], form: str) -> None:
    batch, graph = pair.batch(sizes, form), pair.assistant
    tokens = mx.array([row.tokens(row.known - 1, 1)[0] for row in batch.rows])
    hidden = batch.hidden
    assert hidden is not None
    for step in range(STEPS):
        group = PhaseGroup(Phase.DECODE, tokens[:, None], batch.state)
        inner = graph.begin(pair.target.embed(tokens), hidden)
        inner = graph.norm(reader(graph.layers, group, [size - 1 for size in sizes])(inner))
        logits, hidden = graph.logits(inner), graph.back(inner)
        for r, size in enumerate(sizes):
            for mine, name in ((logits, "logits"), (hidden, "back")):
                error = np.abs(np.array(mine[r]) - pair.golden[f"{size}.{name}"][step]).max()
                # Arrays are for GPUs, whose float32 operations round more often than ours.
                assert error < (1e-5 if form == "own" else 3e-5), (size, step, name)
        tokens = mx.argmax(logits, axis=-1)
    assert batch.state.lengths == tuple(sizes), "an assistant leaves no trace"


@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_rows_of_uneven_depth_draft_what_they_draft_alone(pair: Pair, sizes: tuple[int, ...]) -> None:
    source = AssistantSource(pair.assistant, pair.target)
    for depths in ((6, 0, 3, 1), (1, 6, 2, 5)):
        depths = depths[: len(sizes)]
        if not any(depths):
            continue
        got = source.propose(pair.batch(sizes), depths)
        assert [list(p.tokens) for p in got] == [
            pair.golden[f"{size}.tokens"][:depth].tolist() for size, depth in zip(sizes, depths, strict=True)
        ]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_round_in_one_operation_gives_the_same(pair: Pair, temperature: float) -> None:
    source = AssistantSource(pair.assistant, pair.target)
    if pair.name == "gemma4_e" or not ops.uses_native(mx.float32):
        assert source._fused is None  # pyright: ignore[reportPrivateUsage]
        return
    sizes, depths = (5, 40, 12, 23), (2, 6, 0, 4)
    batch = pair.batch(sizes)
    for row in batch.rows:
        assert isinstance(row, Row)
        row.request = replace(
            row.request, sampling=replace(row.request.sampling, temperature=temperature, seed=len(row.id))
        )
    together = source.propose(batch, depths)
    source._fused = None  # pyright: ignore[reportPrivateUsage]
    assert together == source.propose(batch, depths)
    assert [len(p.tokens) for p in together] == list(depths)


def test_a_row_without_an_entry_is_an_error(pair: Pair) -> None:
    batch = pair.batch((5,))
    row = Row(replace(batch.rows[0].request, prompt=(3,)), Collector())  # type: ignore[attr-defined]
    source = AssistantSource(pair.assistant, pair.target)
    with pytest.raises(ValueError, match="behind tokens that the target has computed"):
        source.propose(DraftBatch([row], batch.state, batch.hidden), [2])


class Recorded(AssistantSource):
    """Keeps what it proposed."""

    def __init__(self, graph: AssistantGraph, target: ModelGraph) -> None:
        super().__init__(graph, target)
        self.log: dict[str, list[tuple[int, tuple[int, ...]]]] = {}

    def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
        out = super().propose(batch, depths)
        for row, proposal in zip(batch.rows, out, strict=True):
            assert isinstance(row, Row)
            self.log.setdefault(row.id, []).append((len(row.output), proposal.tokens))
        return out


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a batch"])
def test_the_trained_pair_accepts_what_the_reference_accepts(together: bool) -> None:
    golden = dict(np.load(HERE / "goldens" / "tiny_gemma4_assistant.npz"))
    target = open_checkpoint(BUNDLED / "tiny-gemma4")
    checkpoint = open_checkpoint(BUNDLED / "tiny-gemma4-assistant")
    sources: list[Recorded] = []

    def drafts(graph: ModelGraph) -> list[Recorded]:
        assistant = Gemma4Assistant(checkpoint.config, checkpoint.weights, mx.float32, target.config)
        sources.append(Recorded(assistant, graph))
        return sources

    engine = SteppedEngine(
        lambda: compose.load_graph(BUNDLED / "tiny-gemma4", "float32")[0],
        EngineInfo(vocab_size=target.config.vocab_size, context_length=512, backend="test"),
        compose.EngineConfig(),
        row_invariant=ops.row_invariant(mx.float32),
        drafts=drafts,
    )
    assert engine.speculation is not None
    engine.speculation.policy = FixedPolicy([3])  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
    got = Collector()
    for number in range(3):
        end = int(golden[f"{number}.tokens"][-1])  # the reference ends behind a round with it
        sampling = SamplingParams(temperature=0.0, max_tokens=100, stop_token_ids=(end,))
        prompt = tuple(golden[f"{number}.ids"].tolist())
        engine.submit(Request(id=str(number), prompt=prompt, sampling=sampling), got)
        if not together:
            engine.finish()
    engine.finish()
    for number in range(3):
        tokens = golden[f"{number}.tokens"].tolist()
        end = tokens.index(tokens[-1])
        assert got.tokens(str(number)) == tokens[:end]
        log = sources[0].log[str(number)]
        assert [list(drafted) for _, drafted in log] == golden[f"{number}.drafts"].tolist()
        starts = [known for known, _ in log]
        accepted = [b - a - 1 for a, b in zip(starts, starts[1:], strict=False)]
        assert accepted == golden[f"{number}.accepted"].tolist()[:-1]
    engine.close()


@pytest.mark.parametrize(
    ("target", "assistant", "message"),
    [
        ("gemma4_dense", "gemma4_e_assistant", "KV heads of sliding layers 1, this one has 2"),
        ("llama", "gemma4_e_assistant", "family gemma4, this one has llama"),
        ("gemma4_e", "gemma4_dense_assistant", "KV heads of sliding layers 2, this one has 1"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(target: str, assistant: str, message: str) -> None:
    config = open_checkpoint(HERE / "fixtures" / target).config
    checkpoint = open_checkpoint(HERE / "fixtures" / assistant)
    with pytest.raises(ConfigError, match=message):
        Gemma4Assistant(checkpoint.config, checkpoint.weights, mx.float32, config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 128}, "vocabulary 96, this one has 128"),
        ({"hidden_size": 64}, "width 32, this one has 64"),
        ({"window": 32}, "window 16, this one has 32"),
        ({"layer_kinds": ("full",) * 8}, "sliding layers with KV True, this one has False"),
    ],
)
def test_each_measure_of_a_pair_is_compared(change: dict[str, Any], message: str) -> None:
    config = replace(open_checkpoint(HERE / "fixtures" / "gemma4_e").config, **change)
    checkpoint = open_checkpoint(HERE / "fixtures" / "gemma4_e_assistant")
    with pytest.raises(ConfigError, match=message):
        Gemma4Assistant(checkpoint.config, checkpoint.weights, mx.float32, config)
