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

    Appends to the groups' caches. Lazy, except that big steps are evaluated layer by layer.
    """
    out: dict[int, mx.array] = {}
    for members in bundles(groups, row_invariant=row_invariant):
        parts = _forward_packed(graph, [groups[i] for i in members])
        out.update(zip(members, parts, strict=True))
    return [out[i] for i in range(len(groups))]


def _forward_packed(graph: ModelGraph, groups: Sequence[PhaseGroup]) -> list[mx.array]:
    runs = [GroupPass(group, _offsets(group)) for group in groups]
    starts = [0]
    for group in groups:
        starts.append(starts[-1] + group.tokens)
    ids = _join([group.ids.reshape(-1) for group in groups])
    hidden = graph.embed(ids)
    sides = graph.side_inputs(ids, hidden)
    tapped = any(group.capture is not None for group in groups)
    index = 0
    while index < len(graph.layers):
        span = _fused_span(graph.layers, index, single=tapped) if sides is None else []
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
    hidden = graph.norm(hidden)
    return [_part(hidden, start, group) for start, group in zip(starts, groups, strict=False)]


def _fused_span(layers: Sequence[GraphLayer], first: int, *, single: bool) -> list[GraphLayer]:
    """The layers from `first` on that run as one operation; only one where somebody taps each layer."""
    span: list[GraphLayer] = []
    for layer in layers[first : first + 1 if single else None]:
        if layer.fused is None:
            break
        span.append(layer)
    return span


def _run_fused(
    layers: Sequence[GraphLayer], first: int, hidden: mx.array, groups: Sequence[PhaseGroup]
) -> mx.array:
    """Layers that each own KV: number n has cache n."""
    stores: list[mx.array] = []
    bases: list[Sequence[int]] = []
    owners = [(group.caches[n], group.length) for n in range(first, first + len(layers)) for group in groups]
    for cache, length in owners:
        keys, values, row_bases, _ = cache.reserve(length)
        stores += (keys, values)
        bases.append(row_bases)
    offsets = [offset for group in groups for offset in _offsets(group)]
    if len(groups) > 1:  # one list for each layer
        count = len(groups)
        bases = [[b for rows in bases[i : i + count] for b in rows] for i in range(0, len(bases), count)]
    shapes = [(group.rows, group.length) for group in groups]
    whole = [layer.fused for layer in layers]
    hidden, *stores = fused.run_layers(whole, hidden, stores, shapes, offsets, bases)
    for (cache, length), keys, values in zip(owners, stores[::2], stores[1::2], strict=True):
        cache.publish(keys, values, length)
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


def _offsets(group: PhaseGroup) -> tuple[int, ...]:
    return group.caches[0].lengths if group.caches else (0,) * group.rows


def _part(hidden: mx.array, start: int, group: PhaseGroup) -> mx.array:
    if group.tokens < hidden.shape[0]:
        hidden = hidden[start : start + group.tokens]
    return hidden.reshape(group.rows, group.length, -1)


def _join(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
