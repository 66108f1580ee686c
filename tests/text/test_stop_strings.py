"""Stop strings cut exactly where they should, however the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.text.stop_strings import StopMatcher

pieces = st.lists(st.text("abX", max_size=4), max_size=12)
stops = st.lists(st.text("abX", min_size=1, max_size=4), max_size=4)


def run(stop_strings: list[str], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop_strings)
    shown = ""
    for chunk in chunks:
        text, stop = matcher.push(chunk)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


def oracle(stop_strings: list[str], text: str) -> tuple[str, str | None]:
    """Character by character: the first end of any stop; of several that end there, the longest."""
    for end in range(len(text) + 1):
        ending = [s for s in stop_strings if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stops, pieces)
def test_any_chunking_gives_the_whole_texts_result(stop_strings: list[str], chunks: list[str]) -> None:
    assert run(stop_strings, chunks) == oracle(stop_strings, "".join(chunks))


@given(stops, pieces)
def test_only_a_real_beginning_is_held_back(stop_strings: list[str], chunks: list[str]) -> None:
    matcher = StopMatcher(stop_strings)
    seen = shown = ""
    for chunk in chunks:
        seen += chunk
        text, stop = matcher.push(chunk)
        shown += text
        if stop is not None:
            return
        held = seen[len(shown) :]
        assert held == "" or any(s.startswith(held) for s in stop_strings)


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["\n3."])
    assert matcher.push("1. a\n2. b\n3") == ("1. a\n2. b", None)
    assert matcher.push(". c\n4. d") == ("", "\n3.")
    assert matcher.push("more") == ("", None)
    assert matcher.flush() == ""


def test_a_long_stop_that_never_comes_holds_nothing() -> None:
    matcher = StopMatcher(["Z" * 200])
    assert matcher.push("</think> answer") == ("</think> answer", None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
