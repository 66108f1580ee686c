"""Windows beside running streams keep the gap between two tokens near its target."""

from __future__ import annotations

import pytest

from ingle.engine.pace import Pace


def play(pace: Pace, per_token_s: float, decode_s: float, steps: int) -> float:
    """The longest step after the machine is known."""
    longest = 0.0
    for step in range(steps):
        tokens = pace.window(streams=True)
        seconds = decode_s + tokens * per_token_s
        pace.observe(streams=True, tokens=tokens, seconds=seconds)
        longest = max(longest, seconds if step > 2 else 0.0)
    return longest


@pytest.mark.parametrize("per_token_s", [0.0002, 0.001, 0.004])
def test_steps_stay_under_the_target(per_token_s: float) -> None:
    pace = Pace(0.1, 256)
    for _ in range(20):
        pace.observe(streams=True, tokens=0, seconds=0.01)
    assert play(pace, per_token_s, 0.01, 50) <= 0.1
    assert pace.window(streams=True) * per_token_s > 0.05 or pace.window(streams=True) == 256


def test_a_prompt_that_gets_dearer_gets_shorter_windows_at_once() -> None:
    pace = Pace(0.1, 256)
    play(pace, 0.0005, 0.0, 10)
    cheap = pace.window(streams=True)
    pace.observe(streams=True, tokens=cheap, seconds=cheap * 0.001)
    assert pace.window(streams=True) <= 0.1 / 0.001


def test_nobody_waits_nothing_is_cut() -> None:
    pace = Pace(0.1, 256)
    play(pace, 0.05, 0.0, 10)
    assert pace.window(streams=False) == 256
    assert pace.window(streams=True) == 16, "even the slowest machine advances"
    assert Pace(0.1, 4).window(streams=True) == 4
