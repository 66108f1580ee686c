"""Run several phase groups through one forward, sharing all token-wise work.

The tokens of all groups are laid behind each other without padding, [tokens, hidden]; norms,
projections and MLPs see only that. Attention alone runs group by group. A decode row that travels
with a prompt window so reads the weights for free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

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
    """Hidden states after the final norm, one [rows, wanted or length, hidden] array for each group;
    [tokens, hidden] for groups whose rows have `lengths` of their own.

    Advances the groups' states. Lazy, except that big steps are evaluated layer by layer.
    """
    out: dict[int, mx.array] = {}
    for members in bundles(groups, row_invariant=row_invariant):
        parts = _forward_packed(graph, [groups[i] for i in members])
        out.update(zip(members, parts, strict=True))
    return [out[i] for i in range(len(groups))]


class _Packed:
    """Groups whose tokens lie behind each other, on their way through the layers."""

    def __init__(self, runs: Sequence[GroupPass], hidden: mx.array, sides: mx.array | None) -> None:
        self.runs, self.hidden, self.sides = runs, hidden, sides
        self.starts = list(itertools.accumulate((run.group.tokens for run in runs), initial=0))

    @property
    def tokens(self) -> int:
        return self.starts[-1]

    def part(self, number: int, whole: mx.array | None = None) -> mx.array:
        """Group `number`'s part of the hidden states, or of `whole`: [rows, length or uneven, ...]."""
        group, x = self.runs[number].group, self.hidden if whole is None else whole
        if group.tokens < x.shape[0]:
            x = x[self.starts[number] : self.starts[number + 1]]
        return x if group.lengths is not None else x.reshape(group.rows, group.length, *x.shape[1:])

    def narrowed(self, wanted: Sequence[int]) -> _Packed:
        """Only the last `wanted[i]` tokens of each row of group i; groups of which none is left are gone."""

        if all(n == run.group.length for run, n in zip(self.runs, wanted, strict=True)):
            return self

        def last(whole: mx.array) -> mx.array:
            return _join([self._last(i, n, whole) for i, (_, n) in kept])

        numbered = enumerate(zip(self.runs, wanted, strict=True))
        kept = [(i, (run, n)) for i, (run, n) in numbered if n]
        if not kept:
            return _Packed((), self.hidden[:0], None)
        sides = None if self.sides is None else last(self.sides)
        runs = [run if n == run.group.length else run.last(n) for _, (run, n) in kept]
        return _Packed(runs, last(self.hidden), sides)

    def _last(self, number: int, count: int, whole: mx.array) -> mx.array:
        part, length = self.part(number, whole), self.runs[number].group.length
        if self.runs[number].group.lengths is not None:
            return part
        return part[:, length - count :].reshape(-1, *part.shape[2:])


def _forward_packed(graph: ModelGraph, groups: Sequence[PhaseGroup]) -> list[mx.array]:
    for group in groups:
        group.state.reserve(group.length)
    runs = [GroupPass(group, group.state.lengths) for group in groups]
    ids = _join([group.ids.reshape(-1) for group in groups])
    packed = _Packed(runs, graph.embed(ids), None)
    packed.hidden = _with_soft_tokens(packed.hidden, groups, packed.starts)
    packed.sides = graph.side_inputs(ids, packed.hidden)
    border = graph.stateful_layers
    _run(graph.layers, 0, border, packed)
    wanted = [group.length if group.wanted is None else group.wanted for group in groups]
    packed = packed.narrowed(wanted)
    if packed.runs:
        _run(graph.layers, border, len(graph.layers), packed)
    for group in groups:
        group.state.advance(group.row_lengths, revocable=group.revocable)
    packed.hidden = graph.norm(packed.hidden)
    numbers = itertools.count()
    return [
        packed.part(next(numbers)) if n else mx.zeros((group.rows, 0, packed.hidden.shape[-1]))
        for group, n in zip(groups, wanted, strict=True)
    ]


def reader(
    layers: Sequence[GraphLayer], group: PhaseGroup, offsets: Sequence[int]
) -> Callable[[mx.array], mx.array]:
    """Layers that own no KV, to be run over hidden states [tokens, hidden] as often as one likes.

    They attend to the state of `group`, whose tokens stand at position offsets[r] and on; it does not change.
    """
    runs = [GroupPass(group, tuple(offsets))]
    if len(_fused_span(layers, 0, [group])) == len(layers):
        native, prepared = [layer.fused for layer in layers], _layer_run(layers, 0, runs, None)

        def read(hidden: mx.array) -> mx.array:
            out = fused.run_layers(native, hidden, prepared)
            group.state.wrote(out)  # who writes next waits until this has been read
            return out

        return read

    def read_each(hidden: mx.array) -> mx.array:
        packed = _Packed(runs, hidden, None)
        _run(layers, 0, len(layers), packed)
        return packed.hidden

    return read_each


def _with_soft_tokens(hidden: mx.array, groups: Sequence[PhaseGroup], starts: Sequence[int]) -> mx.array:
    for start, group in zip(starts, groups, strict=False):
        for soft in group.soft:
            at = mx.array([start + soft.start])
            hidden = mx.slice_update(hidden, soft.features.astype(hidden.dtype), at, axes=[0])
    return hidden


def _run(layers: Sequence[GraphLayer], first: int, end: int, packed: _Packed) -> None:
    """Layers [first, end), in place."""
    groups = [run.group for run in packed.runs]
    index = first
    while index < end:
        span = _fused_span(layers[:end], index, groups)
        if span:
            _run_fused(span, index, packed)
            index += len(span)
        else:
            _run_layer(layers[index], index, packed)
            index += 1
            if packed.tokens >= _EVAL_TOKENS:
                mx.eval(packed.hidden)
        for number, group in enumerate(groups):
            if group.capture is not None:
                group.capture(index - 1, packed.part(number))


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


def _run_fused(layers: Sequence[GraphLayer], first: int, packed: _Packed) -> None:
    run = _layer_run(layers, first, packed.runs, packed.sides)
    packed.hidden = fused.run_layers([layer.fused for layer in layers], packed.hidden, run)
    for one in packed.runs:
        one.group.state.wrote(packed.hidden)


def _layer_run(
    layers: Sequence[GraphLayer], first: int, runs: Sequence[GroupPass], sides: mx.array | None
) -> fused.LayerRun:
    groups = [run.group for run in runs]
    layout = groups[0].state.layout
    none: list[list[int]] = [[]]
    return fused.LayerRun(
        tables=[
            [table for group in groups for table in group.state.tables(kind) or ()]
            for kind in range(len(layout.kinds))
        ],
        places=[layout.places[layer.kv_index] for layer in layers],
        shapes=[shape for group in groups for shape in _shapes(group)],
        offsets=[offset for run in runs for offset in run.offsets],
        ends=[
            ends
            for group in groups
            for ends in (none * group.rows if group.ends is None else _lists(group.ends))
        ],
        sides=None if sides is None else sides[:, first : first + len(layers)],
        after=[done for group in groups for done in group.state.arrays],
    )


def _run_layer(layer: GraphLayer, index: int, packed: _Packed) -> None:
    side = None if packed.sides is None else packed.sides[:, index]
    projected = layer.before(packed.hidden)
    mixed = _join(
        [
            run.group.in_line(layer.attend(projected.group_form(start, run.group), run))
            for start, run in zip(packed.starts, packed.runs, strict=False)
        ]
    )
    packed.hidden = layer.after(packed.hidden, mixed, side)


def _shapes(group: PhaseGroup) -> list[tuple[int, int]]:
    return [(group.rows, group.length)] if group.lengths is None else [(1, n) for n in group.lengths]


def _lists(ends: mx.array) -> list[list[int]]:
    return cast("list[list[int]]", ends.tolist())


def _join(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
