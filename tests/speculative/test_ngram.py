"""Look-ups find what followed the same ending before, however the row grew."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.decoding.sampler import Draw
from ingle.speculative.ngram import SIZES, NgramSource
from ingle.speculative.source import NOTHING, DraftBatch, DraftRow


class Text:
    def __init__(self, tokens: list[int]) -> None:
        self.all = tokens

    @property
    def known(self) -> int:
        return len(self.all)

    def tokens(self, start: int, length: int) -> list[int]:
        return self.all[start : start + length]

    def draw(self) -> Draw:
        raise AssertionError("look-ups do not draw")


def batch(*rows: DraftRow) -> DraftBatch:
    return DraftBatch(rows, cast("Any", None), None)


def source(*rows: Text) -> NgramSource:
    made = NgramSource()
    made.stage((), rows).publish()
    return made


def expected(tokens: list[int], depth: int) -> tuple[tuple[int, ...], int]:
    """By looking everywhere."""
    for size in SIZES:
        ending = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == ending:
                later = tokens[end:]
                return tuple((later * depth)[:depth]), size
    return (), 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 8))
def test_it_is_a_search_through_the_whole_text(tokens: list[int], depth: int) -> None:
    (got,) = source(row := Text(tokens)).propose(batch(row), [depth])
    assert (got.tokens, got.kind) == expected(tokens, depth)


@given(st.lists(st.integers(0, 2), min_size=6, max_size=60), st.data())
def test_a_row_that_grows_is_read_once(tokens: list[int], data: st.DataObject) -> None:
    row = Text(tokens[:3])
    made = source(row)
    while len(row.all) < len(tokens):
        row.all = tokens[: len(row.all) + data.draw(st.integers(1, 9))]
        (got,) = made.propose(batch(row), [4])
        assert (got.tokens, got.kind) == expected(row.all, 4)


def test_what_repeats_goes_round() -> None:
    row = Text([7, 8, 9, 7, 8, 9, 7, 8, 9])
    (got,) = source(row).propose(batch(row), [7])
    assert got.tokens == (7, 8, 9, 7, 8, 9, 7)


def test_rows_do_not_see_each_other() -> None:
    first, second = Text([1, 2, 3, 4, 1, 2, 3]), Text([5, 6, 7, 1, 2, 3])
    made = source(first, second)
    got = made.propose(batch(first, second), [2, 2])
    assert got[0].tokens == (4, 1)
    assert got[1] == NOTHING
    made.stage([second], []).publish()
    with pytest.raises(KeyError):
        made.propose(batch(first), [2])
    made.drop()


def test_nothing_is_asked_for_nothing_comes() -> None:
    row = Text([1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert source(row).propose(batch(row), [0]) == [NOTHING]
