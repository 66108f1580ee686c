"""A whole round of drafts of an assistant as one native operation."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ingle.contracts.cache import RowState
from ingle.contracts.graph import GraphLayer
from ingle.kernels import fused, ops


def round_of_drafts(
    drafter: object,
    layers: Sequence[GraphLayer],
    state: RowState,
    rows: Sequence[int],
    *,
    offsets: Sequence[int],
    depths: Sequence[int],
    choices: Sequence[ops.Choice],
    tokens: mx.array,
    hidden: mx.array,
) -> mx.array:
    """`depths[i]` drafts for row rows[i] of `state`, in order of falling depth, whose queries stand at
    offsets[i] and see its KV.

    `tokens` int32 [rows] and `hidden` [rows, target's hidden] are what it begins with, `choices` those of all
    drafts: first of each row's first one, then of the second ones. Their tokens come back in this order.
    """
    layout = state.layout
    tables: list[Sequence[object]] = []
    for kind in range(len(layout.kinds)):
        every = state.tables(kind)
        assert every is not None, "a fused drafter reads native tables"
        tables.append([every[r] for r in rows])
    run = fused.DraftRun(
        tables=tables,
        places=[layout.places[layer.kv_index] for layer in layers],
        offsets=offsets,
        depths=depths,
        after=state.arrays,
    )
    return fused.run_drafter(drafter, tokens, hidden, run, choices)
