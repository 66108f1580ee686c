"""How many drafts each row gets: as many as pay, by what was measured, and none where they lose.

Two things see to that. What drafts promise is weighed before each round, with rates and costs that were
learnt. And an account is kept of what they gave: time that accepted drafts saved goes in, time spent on
drafting and verifying goes out, and with it empty nobody drafts. Whatever was learnt wrongly, all of it costs
little more than the account's credit, a small part of all steps.

Worth is tokens for each second of a step. A step's time is learnt for each number of tokens it computes, a
round of drafting for each depth, and for each row how often a draft is right whose predecessors were. How
fast the machine is at the moment is followed apart: what is weighed against each other was measured at
different moments.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_DEPTH = 16
MAX_DRAFTS = 32
"""Of all rows in one step: each needs a row of logits."""

_FOLLOW = 0.15  # weight of the newest time
_FOLLOW_PACE = 0.4
_LEARN = 0.1  # weight of the newest right or wrong draft, for a row
_LEARN_SHARED = 0.02  # the same over all rows, where new rows start
_FORGET = 200  # steps after which what a row's drafts told counts for nothing
_GAIN = 1.15  # drafts must promise so much more
_SHORTEST_WAIT, _LONGEST_WAIT = 24, 512  # steps without drafts before they are tried again
_START = {5: 0.8, 3: 0.45}  # what to expect of n-grams by size
_UNKNOWN = 0.6
_CREDIT = 0.007  # of the time of each step: what trying may cost
_CAUTION = 0.7  # of what accepted drafts seem to save
# Steps' worth of time that the account holds at first, at most and at least. One interrupted round must not
# silence drafts for long.
_START_CAPITAL, _SAVINGS, _MOST_DEBT = 5.0, 12.0, 1.5


class CostCurve:
    """Seconds by size: the measured ones followed, the others between and beyond them in straight lines."""

    def __init__(self, growth: float) -> None:
        """`growth`: what one more costs, as a part of the smallest known, until two sizes are known."""
        self._growth = growth
        self._sizes: list[int] = []
        self._seconds: list[float] = []

    @property
    def known(self) -> bool:
        return bool(self._sizes)

    def has(self, size: int) -> bool:
        at = bisect_left(self._sizes, size)
        return at < len(self._sizes) and self._sizes[at] == size

    def observe(self, size: int, seconds: float) -> None:
        at = bisect_left(self._sizes, size)
        if at < len(self._sizes) and self._sizes[at] == size:
            self._seconds[at] += _FOLLOW * (seconds - self._seconds[at])
        else:
            self._sizes.insert(at, size)
            self._seconds.insert(at, seconds)

    def __call__(self, size: int) -> float:
        sizes, seconds = self._sizes, self._seconds
        at = bisect_left(sizes, size)
        if at < len(sizes) and sizes[at] == size:
            return seconds[at]
        if len(sizes) == 1:
            return seconds[0] * max(0.1, 1 + self._growth * (size - sizes[0]))
        at = min(max(at, 1), len(sizes) - 1)
        slope = (seconds[at] - seconds[at - 1]) / (sizes[at] - sizes[at - 1])
        return max(seconds[at - 1] + max(slope, 0.0) * (size - sizes[at - 1]), 0.1 * seconds[0])


@dataclass(frozen=True, slots=True)
class Option:
    """What a row could be given."""

    chance: float  # that a draft is right if those before it were
    most: int  # drafts
    free: bool = False  # they are there already


@dataclass(slots=True)
class Rates:
    """How often drafts of one row were right, for each kind of proposal."""

    by_kind: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])  # rate, when


class _Batches:
    """What is known of batches of about one size. Rows cost more than drafts, so each size has its own."""

    def __init__(self, rows: int) -> None:
        self.step = CostCurve(0.2 / rows**0.5)
        self.round = CostCurve(1.0)  # of drafting, by depth
        self.balance: float | None = None  # seconds in the account; None: not opened yet
        self.idle = 0  # steps without drafts
        self.wait = _SHORTEST_WAIT

    def settle(self, rows: int, drafts: int, accepted: int, pace: float) -> None:
        """A step's gains and costs, but for what was spent on drafting."""
        plain = self.step(rows)
        cost = self.step(rows + drafts) - plain
        gain = _CAUTION * accepted * plain / rows + _CREDIT * plain
        before = _START_CAPITAL * pace * plain if self.balance is None else self.balance
        worth = pace * plain
        after = before + pace * (gain - cost)
        self.balance = min(max(after, -_MOST_DEBT * worth), _SAVINGS * worth)


class Policy:
    """One for each engine: what it learns is about this machine, this model and its sources."""

    holds = 8  # rounds for which a decision about a source that computes is kept: weighing takes time

    def __init__(self) -> None:
        self._batches: dict[int, _Batches] = {}
        self._pace = 1.0  # how much longer everything takes now
        self._shared: dict[int, float] = {}
        self._count = 0  # steps

    def solvent(self, rows: int) -> bool:
        """Drafts may be tried: those before paid for themselves, or little was lost."""
        return (self._of(rows).balance or 0.0) >= 0.0

    def depths(self, options: Sequence[Option]) -> list[int]:
        """Drafts for each row of a batch."""
        rows = len(options)
        depths = [0] * rows
        batches = self._of(rows)
        step_seconds, round_seconds = batches.step, batches.round
        if not step_seconds.known or not any(option.most for option in options):
            return depths
        untried = not (round_seconds.known or any(option.free for option in options))
        if untried or batches.idle >= batches.wait:  # what is not tried is not known
            batches.idle, batches.wait = 0, min(2 * batches.wait, _LONGEST_WAIT)
            return _within([min(3, option.most) for option in options], MAX_DRAFTS)
        heap = [(-option.chance, r) for r, option in enumerate(options) if option.most]
        heapq.heapify(heap)
        best = rows / step_seconds(rows) * _GAIN
        tokens, taken, chosen, deepest = float(rows), [0] * rows, 0, 0
        order: list[int] = []
        while heap and len(order) < MAX_DRAFTS:
            worth, r = heap[0]
            tokens -= worth
            taken[r] += 1
            order.append(r)
            if not options[r].free:
                deepest = max(deepest, taken[r])
            drafting = round_seconds(deepest) if deepest and round_seconds.known else 0.0
            value = tokens / (step_seconds(rows + len(order)) + drafting)
            if value > best:
                best, chosen = value, len(order)
            if taken[r] < options[r].most:
                heapq.heapreplace(heap, (worth * options[r].chance, r))
            else:
                heapq.heappop(heap)
        for r in order[:chosen]:
            depths[r] += 1
        if chosen:
            batches.wait = _SHORTEST_WAIT
        return depths

    def rate(self, rates: Rates, kind: int) -> float:
        """How likely a row's draft is right if those before it were."""
        shared = self._shared.get(kind, _START.get(kind, _UNKNOWN))
        known = rates.by_kind.get(kind)
        if known is None:
            return shared
        rate, seen = known
        forgotten = min(1.0, (self._count - seen) / _FORGET)
        return rate + forgotten * (shared - rate)

    def observe_row(self, rates: Rates, kind: int, right: int, *, wrong: bool) -> None:
        """Of a proposal of this row `right` tokens were what came, and then, if `wrong`, one was not."""
        rate, shared = self.rate(rates, kind), self._shared.get(kind, _START.get(kind, _UNKNOWN))
        for hit in (1.0,) * right + (0.0,) * wrong:
            rate += _LEARN * (hit - rate)
            shared += _LEARN_SHARED * (hit - shared)
        if right or wrong:
            rates.by_kind[kind], self._shared[kind] = (rate, self._count), shared

    def observe_step(self, rows: int, drafts: int, accepted: int, seconds: float, *, alone: bool) -> None:
        """A step of so many rows and drafts; `alone`: without windows of prompts."""
        batches = self._of(rows)
        self._count += 1
        if alone:
            self._observe(batches.step, rows + drafts, seconds)
        batches.idle = 0 if drafts else batches.idle + 1
        if batches.step.known:
            batches.settle(rows, drafts, accepted, self._pace)

    def spend(self, rows: int, seconds: float) -> None:
        """So long drafts for a batch were looked up, computed and weighed."""
        batches = self._of(rows)
        if batches.balance is not None:
            batches.balance -= seconds

    def observe_drafting(self, rows: int, depth: int, seconds: float) -> None:
        """A round for a batch of so many rows, up to this depth."""
        self._observe(self._of(rows).round, depth, seconds)

    def _of(self, rows: int) -> _Batches:
        size = rows.bit_length()
        if size not in self._batches:
            self._batches[size] = _Batches(rows)
        return self._batches[size]

    def _observe(self, curve: CostCurve, size: int, seconds: float) -> None:
        if curve.has(size):
            ratio = seconds / (self._pace * curve(size))
            # A step that was interrupted says little about the next one.
            self._pace *= min(max(ratio, 0.5), 2.0) ** _FOLLOW_PACE
            seconds = min(seconds, 2.0 * self._pace * curve(size))
        curve.observe(size, seconds / self._pace)


def _within(depths: list[int], most: int) -> list[int]:
    out: list[int] = []
    for depth in depths:
        out.append(min(depth, most))
        most -= out[-1]
    return out
