"""Run several phase groups through one forward, sharing all token-wise work.

The tokens of all groups are laid behind each other without padding, [tokens, hidden]; norms,
projections and MLPs see only that. Attention alone runs group by group. A decode row that travels
with a prompt window so reads the weights for free.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.graph import GroupPass, ModelGraph, Phase, PhaseGroup

_EVAL_TOKENS = 32  # above it a layer's transients outweigh the cost of evaluating layer by layer


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
    for index, layer in enumerate(graph.layers):
        projected = layer.before(hidden)
        mixed = _join(
            [
                layer.attend(projected.group_form(start, run.group), run).reshape(run.group.tokens, -1)
                for start, run in zip(starts, runs, strict=False)
            ]
        )
        hidden = layer.after(hidden, mixed, None if sides is None else sides[:, index])
        for start, group in zip(starts, groups, strict=False):
            if group.capture is not None:
                group.capture(index, _part(hidden, start, group))
        if starts[-1] >= _EVAL_TOKENS:
            mx.eval(hidden)
    hidden = graph.norm(hidden)
    return [_part(hidden, start, group) for start, group in zip(starts, groups, strict=False)]


def _offsets(group: PhaseGroup) -> tuple[int, ...]:
    return group.caches[0].lengths if group.caches else (0,) * group.rows


def _part(hidden: mx.array, start: int, group: PhaseGroup) -> mx.array:
    return hidden[start : start + group.tokens].reshape(group.rows, group.length, -1)


def _join(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
