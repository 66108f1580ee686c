"""On machines of many kinds the policy finds what pays, gives up what does not, and never loses much."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ingle.speculative.policy import MAX_DRAFTS, CostCurve, Option, Policy, Rates

STEPS = 3000


class Machine:
    """Steps and rounds that take so long, and a text whose drafts are right so often."""

    def __init__(
        self,
        step: Callable[[int], float],
        drafting: Callable[[int], float],
        chance: float,
        *,
        rows: int = 1,
        free: bool = False,
        noise: float = 0.0,
    ) -> None:
        self.step, self.drafting, self.chance, self.rows, self.free = step, drafting, chance, rows, free
        self.policy, self.rates = Policy(), [Rates() for _ in range(rows)]
        self._random, self._noise = random.Random(3), noise
        self.seconds = self.tokens = self.drafts = 0.0

    def run(self, steps: int) -> float:
        """Tokens per second by those of a machine that never drafts."""
        self.seconds = self.tokens = self.drafts = 0.0
        kind = 5 if self.free else 0
        for _ in range(steps):
            depths = [0] * self.rows
            if self.policy.solvent(self.rows):
                options = [Option(self.policy.rate(r, kind), 8, self.free) for r in self.rates]
                depths = self.policy.depths(options)
            if any(depths):
                drafting = self._noisy(self.drafting(max(depths)))
                self.seconds += drafting
                self.policy.spend(self.rows, drafting)
                if not self.free:
                    self.policy.observe_drafting(self.rows, max(depths), drafting)
            accepted = 0
            for depth, rates in zip(depths, self.rates, strict=True):
                # What is looked up and not used is still seen to be right or wrong.
                shown = max(depth, 1) if self.free and self.policy.solvent(self.rows) else depth
                right = next((i for i in range(shown) if self._random.random() >= self.chance), shown)
                accepted += min(right, depth)
                if shown:
                    self.policy.observe_row(rates, kind, right, wrong=right < shown)
            seconds = self._noisy(self.step(self.rows + sum(depths)))
            self.policy.observe_step(self.rows, sum(depths), accepted, seconds, alone=True)
            assert sum(depths) <= MAX_DRAFTS
            self.seconds += seconds
            self.tokens += self.rows + accepted
            self.drafts += sum(depths)
        return self.tokens / self.seconds * self.step(self.rows) / self.rows

    def best(self) -> float:
        """The same for the best fixed depth."""
        values: list[float] = []
        for depth in range(min(8, MAX_DRAFTS // self.rows) + 1):
            tokens = self.rows * sum(self.chance**i for i in range(depth + 1))
            seconds = self.step(self.rows * (1 + depth)) + (self.drafting(depth) if depth else 0.0)
            values.append(tokens / seconds)
        return max(values) * self.step(self.rows) / self.rows

    def _noisy(self, seconds: float) -> float:
        return seconds * (1 + self._random.expovariate(1 / self._noise) if self._noise else 1)


def flat(tokens: int) -> float:
    return 0.010 + 0.0002 * tokens


def steep(tokens: int) -> float:
    return 0.002 + 0.001 * tokens


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("chance", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("free", [False, True])
def test_it_comes_near_the_best_depth(free: bool, rows: int, chance: float, noise: float) -> None:
    machine = Machine(
        flat, lambda d: 0.0001 if free else 0.001 * d, chance, rows=rows, free=free, noise=noise
    )
    assert machine.run(STEPS) * (1 + noise) > 0.84 * machine.best()


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("rows", [1, 16])
def test_drafts_that_are_never_right_cost_little(free: bool, rows: int, noise: float) -> None:
    machine = Machine(flat, lambda d: 0.0001 if free else 0.004 * d, 0.0, rows=rows, free=free, noise=noise)
    assert machine.run(STEPS) * (1 + noise) > (0.96 if noise else 0.98)


def test_drafts_that_are_right_cost_little_where_tokens_are_dear() -> None:
    """Each token of a step costs what it gives: nothing is to be gained."""
    machine = Machine(steep, lambda d: 0.002 * d, 0.7, rows=16)
    assert machine.run(STEPS) > 0.975
    assert machine.drafts < STEPS


def test_it_notices_when_a_text_begins_to_repeat_itself() -> None:
    machine = Machine(flat, lambda d: 0.0001, 0.05, free=True)
    machine.run(1000)
    machine.chance = 0.95
    assert machine.run(400) > 0.6 * machine.best()


def test_the_first_round_tells_what_rounds_cost() -> None:
    policy = Policy()
    options = [Option(0.6, 8)] * 64
    assert sum(policy.depths(options)) == 0, "nothing is known of steps yet"
    policy.observe_step(64, 0, 0, 0.01, alone=True)
    depths = policy.depths(options)
    assert 0 < sum(depths) <= MAX_DRAFTS


def test_a_curve_is_straight_between_and_beyond_what_is_known() -> None:
    curve = CostCurve(0.5)
    curve.observe(2, 1.0)
    assert (curve(2), curve(4)) == (1.0, 2.0)
    curve.observe(6, 3.0)
    assert (curve(4), curve(8)) == (2.0, 4.0)
    assert curve(1) == 0.5
    curve.observe(6, 0.5)  # faster than the smaller one: noise; never negative
    assert curve(100) > 0
