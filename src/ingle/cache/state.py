"""The form of row state that the back end in use reads fastest, and what arrays and native memory hold."""

from __future__ import annotations

import mlx.core as mx

from ingle.cache.arrays import ArrayState
from ingle.cache.tables import TableState
from ingle.contracts.cache import RowState, StateLayout
from ingle.kernels import native, ops


def itemsize(dtype: mx.Dtype) -> int:
    """Bytes of one element of a key, for activations of `dtype`."""
    return 4 if ops.uses_native(dtype) else dtype.size


def make_state(layout: StateLayout, rows: int, dtype: mx.Dtype) -> RowState:
    """The state of `rows` fresh rows of a graph with activations of `dtype`."""
    return TableState(layout, rows) if ops.uses_native(dtype) else ArrayState(layout, rows, dtype)


def held_bytes() -> int:
    """Bytes of all arrays, native weights, native KV and native scratch of this process."""
    held = mx.get_active_memory()
    if native.available():
        held += native.cpu.weight_bytes() + native.cpu.kv_bytes() + native.cpu.arena_bytes()
    return held


def peak_bytes() -> int:
    """The same at its highest, as the sum of each part's peak since `reset_peak`."""
    peak = mx.get_peak_memory()
    if native.available():
        peak += native.cpu.weight_bytes() + native.cpu.kv_peak_bytes() + native.cpu.arena_bytes()
    return peak


def reset_peak() -> None:
    mx.reset_peak_memory()
    if native.available():
        native.cpu.reset_kv_peak()
