"""What the next step computes: a pure function from the running rows to a plan.

Decode rows go first, all of them: each costs one token and a person waits for it. Prompt windows share a
budget of tokens, by priority, then oldest first. A prompt that got nothing for some steps is granted a
part of the budget before the others, so that neither priority nor a long prompt starves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GRANT_AFTER = 8  # steps without a window after which a row is granted one


@dataclass(frozen=True, slots=True)
class RowView:
    """A running row as the scheduler sees it, in order of arrival."""

    id: str
    pending: int  # tokens known and not computed, at least 1
    in_batch: bool  # its state is in the decode batch
    computed: int = 0
    suspect: bool = False  # its last step failed; it has no state and is never in the batch
    priority: int = 0
    skipped: int = 0  # steps without a window since its last one
    blocks: tuple[tuple[int, int], ...] = ()  # [start, end): positions that no border may part


@dataclass(frozen=True, slots=True)
class Window:
    id: str
    length: int  # of its pending tokens, from the front


@dataclass(frozen=True, slots=True)
class Plan:
    decode: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    drafts: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )  # of decode rows

    @property
    def empty(self) -> bool:
        return not (self.decode or self.windows)

    @property
    def lengths(self) -> dict[str, int]:
        """Tokens that each row computes."""
        lengths = dict.fromkeys(self.decode, 1)
        lengths |= {id: 1 + len(drafts) for id, drafts in self.drafts.items()}
        return lengths | {w.id: w.length for w in self.windows}

    @property
    def draft_tokens(self) -> int:
        return sum(map(len, self.drafts.values()))

    @property
    def window_tokens(self) -> int:
        return sum(window.length for window in self.windows)


def plan(rows: Sequence[RowView], window_tokens: int, border: int = 1) -> Plan:
    """The next step, with at most `window_tokens` prompt tokens. Equal views give equal plans.

    A window that does not end its prompt ends at a multiple of `border` where it can, and never inside a
    block: a block too large for the budget is the only window of its step.
    """
    suspects = [row for row in rows if row.suspect]
    if suspects:  # find the row that broke a step: the oldest suspect runs alone
        row = suspects[0]
        return Plan(windows=(Window(row.id, _window(row, window_tokens, 1, first=True)),))
    decode = tuple(row.id for row in rows if row.in_batch)
    waiting = [row for row in rows if not row.in_batch]
    granted = sorted(
        (row for row in waiting if row.skipped >= GRANT_AFTER), key=lambda row: row.skipped, reverse=True
    )
    lengths: dict[str, int] = {}
    left = window_tokens
    share = max(1, window_tokens // 4)
    for row in granted[:2]:  # half of the budget at most
        length = _window(row, min(share, left), border, first=not any(lengths.values()))
        lengths[row.id] = length
        left -= length
    for row in sorted(waiting, key=lambda row: -row.priority):
        if left <= 0:
            break
        have = lengths.get(row.id, 0)
        length = _window(row, left + have, border, first=not any(lengths.values()))
        lengths[row.id] = max(length, have)
        left -= lengths[row.id] - have
    windows = tuple(Window(row.id, lengths[row.id]) for row in waiting if lengths.get(row.id))
    return Plan(decode, windows)


def _window(row: RowView, most: int, border: int, *, first: bool) -> int:
    """Tokens of a row's next window, `most` at the most; of the `first` window of a step more, if a block
    begins it."""
    end = row.computed + min(row.pending, most)
    if row.pending > most and (rounded := end // border * border) > row.computed:
        end = rounded
    for start, stop in row.blocks:
        if start < end < stop:
            end = start if start > row.computed else stop if first else row.computed
    return end - row.computed
