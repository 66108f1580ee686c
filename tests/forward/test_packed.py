"""One packed forward gives every group what it would get alone."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from ingle.contracts.cache import RowState
from ingle.contracts.graph import Phase, PhaseGroup, Projected
from ingle.forward.packed import bundles, forward
from support.toy import VOCAB, ToyGraph


@pytest.fixture(scope="module")
def graph() -> ToyGraph:
    return ToyGraph()


def ids(rows: int, length: int, seed: int = 0) -> mx.array:
    rng = random.Random(seed)
    return mx.array([[rng.randrange(VOCAB - 2) for _ in range(length)] for _ in range(rows)])


def prefilled(graph: ToyGraph, tokens: mx.array) -> RowState:
    state = graph.make_state(tokens.shape[0])
    mx.eval(forward(graph, [PhaseGroup(Phase.WINDOW, tokens, state)]))
    return state


@pytest.mark.parametrize("row_invariant", [True, False])
def test_mixed_forward_equals_separate_forwards(graph: ToyGraph, row_invariant: bool) -> None:
    def groups() -> list[PhaseGroup]:
        return [
            PhaseGroup(Phase.DECODE, ids(3, 1, 1), prefilled(graph, ids(3, 9, 2))),
            PhaseGroup(Phase.WINDOW, ids(1, 40, 3), graph.make_state(1)),
            PhaseGroup(Phase.VERIFY, ids(2, 4, 4), prefilled(graph, ids(2, 7, 5))),
        ]

    mixed = forward(graph, groups(), row_invariant=row_invariant)
    apart = [forward(graph, [g], row_invariant=row_invariant)[0] for g in groups()]
    for a, b in zip(mixed, apart, strict=True):
        assert a.shape == b.shape
        assert mx.allclose(a, b, atol=1e-5).item()


def test_verify_keeps_its_own_geometry(graph: ToyGraph) -> None:
    """Values cannot show this: it is about which rows share a product on which kernels."""
    groups = [
        PhaseGroup(Phase.DECODE, ids(3, 1), graph.make_state(3)),
        PhaseGroup(Phase.VERIFY, ids(2, 4), graph.make_state(2)),
        PhaseGroup(Phase.WINDOW, ids(1, 5), graph.make_state(1)),
    ]
    assert bundles(groups, row_invariant=True) == [[0, 1, 2]]
    assert bundles(groups, row_invariant=False) == [[0, 2], [1]]
    assert bundles(groups[1:2], row_invariant=False) == [[0]]
    assert bundles([], row_invariant=True) == []


def test_token_wise_work_sees_all_real_tokens_once(graph: ToyGraph) -> None:
    calls: list[int] = []

    class Recording(ToyGraph):
        def embed(self, ids: mx.array) -> mx.array:
            calls.append(ids.shape[0])
            return super().embed(ids)

    recording = Recording()
    groups = [
        PhaseGroup(Phase.DECODE, ids(3, 1), prefilled(recording, ids(3, 4))),
        PhaseGroup(Phase.WINDOW, ids(1, 5), recording.make_state(1)),
    ]
    calls.clear()
    forward(recording, groups, row_invariant=True)
    assert calls == [3 + 5]


@pytest.mark.parametrize("splits", [(5,), (1, 2, 3), (16,), tuple(range(1, 41))])
def test_windows_split_anywhere(graph: ToyGraph, splits: tuple[int, ...]) -> None:
    tokens = ids(2, 41, 6)
    whole = forward(graph, [PhaseGroup(Phase.WINDOW, tokens, graph.make_state(2))])[0]
    state = graph.make_state(2)
    borders = (0, *splits, 41)
    parts = [
        forward(graph, [PhaseGroup(Phase.WINDOW, tokens[:, a:b], state)])[0]
        for a, b in zip(borders, borders[1:], strict=False)
    ]
    assert mx.allclose(whole, mx.concatenate(parts, axis=1), atol=1e-5).item()


@pytest.mark.parametrize("prompt_length", [6, 70, 600])
def test_rejected_tokens_leave_no_trace(graph: ToyGraph, prompt_length: int) -> None:
    """Rows that take back different counts continue like a fresh run, past the window too."""
    prompt, drafts, after = ids(3, prompt_length, 7), ids(3, 4, 8), ids(3, 1, 9)
    state = prefilled(graph, prompt)
    mx.eval(forward(graph, [PhaseGroup(Phase.VERIFY, drafts, state)]))
    rejected = (0, 3, 1)
    state.trim(rejected)
    got = forward(graph, [PhaseGroup(Phase.DECODE, after, state)])[0]
    for row, count in enumerate(rejected):
        sequence = mx.concatenate([prompt[row], drafts[row][: 4 - count], after[row]])[None]
        alone = forward(graph, [PhaseGroup(Phase.WINDOW, sequence, graph.make_state(1))])[0]
        assert mx.allclose(got[row, -1], alone[0, -1], atol=1e-4).item()


def test_capture_taps_every_layer_of_its_group(graph: ToyGraph) -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []
    tapped = PhaseGroup(
        Phase.WINDOW, ids(1, 5), graph.make_state(1), capture=lambda i, h: seen.append((i, tuple(h.shape)))
    )
    forward(graph, [PhaseGroup(Phase.WINDOW, ids(1, 3), graph.make_state(1)), tapped])
    assert seen == [(0, (1, 5, 32)), (1, (1, 5, 32)), (2, (1, 5, 32))]


def test_group_form_cuts_the_packed_projection(graph: ToyGraph) -> None:
    packed = mx.arange(7 * 2 * 3).reshape(7, 2, 3)
    group = PhaseGroup(Phase.VERIFY, mx.zeros((2, 3), mx.int32), graph.make_state(2))
    part = Projected(packed, packed, None).group_form(1, group)
    assert part.values is None
    assert part.queries.shape == (2, 2, 3, 3)
    assert part.queries[1, 0, 2].tolist() == packed[1 + 5, 0].tolist()
