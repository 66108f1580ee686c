"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ingle.cache.arrays import ArrayState
from ingle.cache.recurrent import Carried
from ingle.cache.rows import RowCache
from ingle.contracts.graph import ModelGraph
from ingle.decoding import sampler
from ingle.speculative.ngram import NgramSource
from ingle.speculative.source import DraftSource
from support import drafting
from support.drafting import FixedPolicy
from support.equality import SUBJECTS, Subject, busy_hour, run_machine

Make = Callable[[Subject, ModelGraph], DraftSource]
SOURCES: dict[str, Make] = {
    "right for a while": lambda subject, graph: drafting.right_for_a_while(subject),
    "always right": lambda subject, graph: drafting.always_right(subject),
    "anything": lambda subject, graph: drafting.anything(subject),
    "always wrong": lambda subject, graph: drafting.always_wrong(subject),
    "n-gram": lambda subject, graph: NgramSource((2, 1)),
}


def uneven() -> FixedPolicy:
    return FixedPolicy([3, 0, 4, 1, 2, 7, 0, 5])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_fixed_schedule_holds_with_any_source(name: str, source: str) -> None:
    subject = SUBJECTS[name](drafts=SOURCES[source], policy=uneven)
    busy_hour(subject)
    subject.close()


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_but_the_request_decides(name: str) -> None:
    run_machine(SUBJECTS[name](drafts=SOURCES["right for a while"], policy=uneven), examples=8)


def _one_too_many(patch: pytest.MonkeyPatch) -> None:
    accepted = sampler._accepted  # pyright: ignore[reportPrivateUsage]
    patch.setattr(sampler, "_accepted", lambda line, draw: min(len(draw.drafts), accepted(line, draw) + 1))


def _rejected_tokens_stay(patch: pytest.MonkeyPatch) -> None:
    trim = ArrayState.trim
    patch.setattr(ArrayState, "trim", lambda self, counts: trim(self, [max(0, c - 1) for c in counts]))


def _everybody_as_the_first_row(patch: pytest.MonkeyPatch) -> None:
    trim = ArrayState.trim
    patch.setattr(ArrayState, "trim", lambda self, counts: trim(self, [counts[0]] * len(counts)))


def _noise_of_the_first_position(patch: pytest.MonkeyPatch) -> None:
    positions = sampler.Draw.positions
    patch.setattr(
        sampler.Draw, "positions", lambda self: [replace(d, position=self.position) for d in positions(self)]
    )


def _recurrent_state_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    trim = Carried.trim
    patch.setattr(Carried, "trim", lambda self, counts: trim(self, [0] * len(counts)))


def _longest_row_decides(patch: pytest.MonkeyPatch) -> None:
    cut = RowCache.cut
    patch.setattr(RowCache, "cut", lambda self, lengths: cut(self, [max(lengths)] * len(lengths)))


@pytest.mark.parametrize(
    "mutation",
    [
        _one_too_many,
        _rejected_tokens_stay,
        _everybody_as_the_first_row,
        _noise_of_the_first_position,
        _recurrent_state_runs_ahead,
        _longest_row_decides,
    ],
)
def test_each_fault_is_seen(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    options = {"drafts": SOURCES["right for a while"], "policy": uneven}
    expected = SUBJECTS["toy"](**options)
    busy_hour(expected)  # fills in what requests get alone, from the unharmed engine
    subject = SUBJECTS["toy"](**options)
    subject._known = expected._known  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        with pytest.raises((AssertionError, ValueError)):
            busy_hour(subject)
    subject.close()
    expected.close()
