"""The form of row state that the back end in use reads fastest."""

from __future__ import annotations

import mlx.core as mx

from ingle.cache.arrays import ArrayState
from ingle.cache.tables import TableState
from ingle.contracts.cache import RowState, StateLayout
from ingle.kernels import ops


def make_state(layout: StateLayout, rows: int, dtype: mx.Dtype) -> RowState:
    """The state of `rows` fresh rows of a graph with activations of `dtype`."""
    return TableState(layout, rows) if ops.uses_native(dtype) else ArrayState(layout, rows, dtype)
