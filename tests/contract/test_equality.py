"""The equality contract: a request's tokens depend on the model, the prompt, the parameters and the seed.

`support.equality` drives engines at random. Below, faults that such engines have had are put in on purpose, and
each must be seen.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingle.cache.arrays import ArrayState
from ingle.contracts.cache import KEY_BLOCK, Retention
from support import toy
from support.equality import SUBJECTS, Subject, busy_hour, rejected_drafts, run_machine
from support.toy import ToyGraph


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_but_the_request_decides(name: str) -> None:
    run_machine(SUBJECTS[name]())


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_fixed_schedules_hold(name: str) -> None:
    subject = SUBJECTS[name]() if name != "toy" else Subject(ToyGraph, toy.POISON, exact=False)
    both_schedules(subject)
    subject.close()


def both_schedules(subject: Subject) -> None:
    busy_hour(subject)
    rejected_drafts(subject)


def _pads_attended(patch: pytest.MonkeyPatch) -> None:
    seen = toy._seen  # pyright: ignore[reportPrivateUsage]
    patch.setattr(toy, "_seen", lambda view, length, window: seen(view, length + 8, window)[..., 8:, :])


def _off_by_one_trim(patch: pytest.MonkeyPatch) -> None:
    trim = ArrayState.trim
    patch.setattr(ArrayState, "trim", lambda self, counts: trim(self, [max(0, c - 1) for c in counts]))


def _wrong_row_filter(patch: pytest.MonkeyPatch) -> None:
    select = ArrayState.select
    patch.setattr(
        ArrayState, "select", lambda self, keep, joining=(): select(self, list(keep)[::-1], joining)
    )


def _ring_cut_by_logical_length(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Retention, length: int) -> int:
        return 0 if self.window is None else length // KEY_BLOCK * KEY_BLOCK

    patch.setattr(Retention, "first_kept", cut)


def _wrong_position(patch: pytest.MonkeyPatch) -> None:
    rotate = toy._rotate  # pyright: ignore[reportPrivateUsage]
    patch.setattr(toy, "_rotate", lambda x, offsets: rotate(x, [max(offsets)] * len(offsets)))


def _stale_cache_entry(patch: pytest.MonkeyPatch) -> None:
    from ingle.engine import admission

    patch.setattr(admission, "block_key", lambda tokens, number, content: ((number,), ()))


@pytest.mark.parametrize(
    "mutation",
    [
        _pads_attended,
        _off_by_one_trim,
        _wrong_row_filter,
        _ring_cut_by_logical_length,
        _wrong_position,
        _stale_cache_entry,
    ],
)
def test_each_fault_is_seen(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    subject = Subject(ToyGraph, toy.POISON, exact=False)
    expected = Subject(ToyGraph, toy.POISON, exact=False)
    busy_hour(expected)  # what requests get alone, from the unharmed engine
    subject._known = expected._known  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        with pytest.raises(AssertionError):
            both_schedules(subject)
    subject.close()
    expected.close()
