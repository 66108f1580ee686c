"""Run several phase groups through one forward, sharing all token-wise work.

The tokens of all groups are laid behind each other without padding, [tokens, hidden]; norms,
projections and MLPs see only that. Attention alone runs group by group. A decode row that travels
with a prompt window so reads the weights for free.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.graph import GraphLayer, GroupPass, ModelGraph, Phase, PhaseGroup
from ingle.kernels import fused

_EVAL_TOKENS = 32  # above it an unfused layer's transients outweigh the cost of evaluating layer by layer


def bundles(groups: Sequence[PhaseGroup], *, row_invariant: bool) -> list[list[int]]:
    """Which groups may share token-wise products, as lists of group numbers.

    Kernels whose bits do not depend on the number of rows pack everything. Others pick a kernel by
    row count, so each verify group keeps a geometry of its own and its tokens stay what they would
    be without company.
    """
    if row_invariant:
        return [list(range(len(groups)))] if groups else []
    packed = [i for i, g in enumerate(groups) if g.phase is not Phase.VERIFY]
    alone = [[i] for i, g in enumerate(groups) if g.phase is Phase.VERIFY]
    return [packed, *alone] if packed else alone


def forward(
    graph: ModelGraph, groups: Sequence[PhaseGroup], *, row_invariant: bool = False
) -> list[mx.array]:
    """Hidden states after the final norm, one [rows, length, hidden] array for each group.

    Advances the groups' states. Lazy, except that big steps are evaluated layer by layer.
    """
    out: dict[int, mx.array] = {}
    for members in bundles(groups, row_invariant=row_invariant):
        parts = _forward_packed(graph, [groups[i] for i in members])
        out.update(zip(members, parts, strict=True))
    return [out[i] for i in range(len(groups))]


def _forward_packed(graph: ModelGraph, groups: Sequence[PhaseGroup]) -> list[mx.array]:
    for group in groups:
        group.state.reserve(group.length)
    runs = [GroupPass(group, group.state.lengths) for group in groups]
    starts = [0]
    for group in groups:
        starts.append(starts[-1] + group.tokens)
    ids = _join([group.ids.reshape(-1) for group in groups])
    hidden = graph.embed(ids)
    sides = graph.side_inputs(ids, hidden)
    index = 0
    while index < len(graph.layers):
        span = _fused_span(graph.layers, index, groups) if sides is None else []
        if span:
            hidden = _run_fused(span, index, hidden, groups)
            index += len(span)
        else:
            side = None if sides is None else sides[:, index]
            hidden = _run_layer(graph.layers[index], hidden, runs, starts, side)
            index += 1
            if starts[-1] >= _EVAL_TOKENS:
                mx.eval(hidden)
        for start, group in zip(starts, groups, strict=False):
            if group.capture is not None:
                group.capture(index - 1, _part(hidden, start, group))
    for group in groups:
        group.state.advance(group.length)
    hidden = graph.norm(hidden)
    return [_part(hidden, start, group) for start, group in zip(starts, groups, strict=False)]


def _fused_span(layers: Sequence[GraphLayer], first: int, groups: Sequence[PhaseGroup]) -> list[GraphLayer]:
    """The layers from `first` on that run as one operation; only one where somebody taps each layer."""
    if any(group.state.tables(0) is None for group in groups):
        return []
    tapped = any(group.capture is not None for group in groups)
    span: list[GraphLayer] = []
    for layer in layers[first : first + 1 if tapped else None]:
        if layer.fused is None:
            break
        span.append(layer)
    return span


def _run_fused(
    layers: Sequence[GraphLayer], first: int, hidden: mx.array, groups: Sequence[PhaseGroup]
) -> mx.array:
    """Layers that each own KV: number n has KV number n."""
    layout = groups[0].state.layout
    tables = [
        [table for group in groups for table in group.state.tables(kind) or ()]
        for kind in range(len(layout.kinds))
    ]
    offsets = [offset for group in groups for offset in group.state.lengths]
    shapes = [(group.rows, group.length) for group in groups]
    places = layout.places[first : first + len(layers)]
    before = [done for group in groups for done in group.state.arrays]
    whole = [layer.fused for layer in layers]
    hidden = fused.run_layers(whole, hidden, tables, places, shapes, offsets, before)
    for group in groups:
        group.state.wrote(hidden)
    return hidden


def _run_layer(
    layer: GraphLayer,
    hidden: mx.array,
    runs: Sequence[GroupPass],
    starts: Sequence[int],
    side: mx.array | None,
) -> mx.array:
    projected = layer.before(hidden)
    mixed = _join(
        [
            layer.attend(projected.group_form(start, run.group), run).reshape(run.group.tokens, -1)
            for start, run in zip(starts, runs, strict=False)
        ]
    )
    return layer.after(hidden, mixed, side)


def _part(hidden: mx.array, start: int, group: PhaseGroup) -> mx.array:
    if group.tokens < hidden.shape[0]:
        hidden = hidden[start : start + group.tokens]
    return hidden.reshape(group.rows, group.length, -1)


def _join(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
