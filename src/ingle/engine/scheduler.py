"""What the next step computes: a pure function from the queue's shape to a plan.

Decode rows go first, all of them: each costs one token and a person waits for it. Prompt windows
then share a fixed number of tokens, oldest row first, so a prompt can delay the running streams by
one window only, and no prompt waits for ever behind younger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    max_rows: int  # rows that run at the same time
    window_tokens: int  # prompt tokens of one step, all windows together


@dataclass(frozen=True, slots=True)
class RowView:
    """A running row as the scheduler sees it, in order of arrival."""

    id: str
    pending: int  # tokens known and not computed, at least 1
    in_batch: bool  # its KV is in the decode batch
    suspect: bool = False  # has no KV and is never in the batch


@dataclass(frozen=True, slots=True)
class QueueView:
    running: Sequence[RowView]  # oldest first
    waiting: Sequence[RowView]  # oldest first; none is in the batch


@dataclass(frozen=True, slots=True)
class Window:
    id: str
    length: int  # of its pending tokens, from the front


@dataclass(frozen=True, slots=True)
class Plan:
    decode: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    admitted: tuple[str, ...] = ()  # waiting rows that start to run

    @property
    def empty(self) -> bool:
        return not (self.decode or self.windows)


def plan(view: QueueView, budget: Budget) -> Plan:
    """The next step. Deterministic; equal views give equal plans."""
    suspects = [row for row in view.running if row.suspect]
    if suspects:  # find the row that broke a step: the oldest suspect runs alone
        row = suspects[0]
        return Plan(windows=(Window(row.id, min(row.pending, budget.window_tokens)),))
    admitted = list(view.waiting[: max(0, budget.max_rows - len(view.running))])
    decode = [row.id for row in view.running if row.in_batch]
    windows: list[Window] = []
    left = budget.window_tokens
    for row in [*view.running, *admitted]:
        if left == 0:
            break
        if not row.in_batch:
            length = min(row.pending, left)
            windows.append(Window(row.id, length))
            left -= length
    started = {window.id for window in windows}
    return Plan(tuple(decode), tuple(windows), tuple(row.id for row in admitted if row.id in started))
