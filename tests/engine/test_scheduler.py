"""The planner keeps its promises for any rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingle.contracts.cache import KEY_BLOCK
from ingle.engine.scheduler import GRANT_AFTER, RowView, plan

budgets = st.integers(1, 512)


@st.composite
def rows(draw: st.DrawFn) -> list[RowView]:
    out: list[RowView] = []
    for i in range(draw(st.integers(0, 24))):
        in_batch = draw(st.booleans())
        out.append(
            RowView(
                id=f"r{i}",
                pending=1 if in_batch else draw(st.integers(1, 2000)),
                in_batch=in_batch,
                computed=draw(st.integers(0, 500)),
                priority=draw(st.integers(-2, 2)),
                skipped=draw(st.integers(0, 2 * GRANT_AFTER)),
            )
        )
    return out


@given(rows(), budgets)
def test_every_decode_row_runs_and_windows_share_the_rest(view: list[RowView], budget: int) -> None:
    chosen = plan(view, budget)
    assert chosen.decode == tuple(row.id for row in view if row.in_batch)
    assert chosen.window_tokens <= budget
    by_id = {row.id: row for row in view}
    assert all(1 <= w.length <= by_id[w.id].pending for w in chosen.windows)
    ids = [*chosen.decode, *(w.id for w in chosen.windows)]
    assert len(ids) == len(set(ids))
    assert chosen.empty == (not view)


@given(rows(), budgets)
def test_no_prompt_is_passed_by_one_behind_it(view: list[RowView], budget: int) -> None:
    """By priority, then arrival; only rows that were skipped for long get something out of turn."""
    lengths = {w.id: w.length for w in plan(view, budget).windows}
    order = sorted((row for row in view if not row.in_batch), key=lambda row: -row.priority)
    if order and all(row.skipped < GRANT_AFTER for row in order):
        assert order[0].id in lengths
        served = [row.id in lengths for row in order]
        assert served == sorted(served, reverse=True)


@given(rows(), budgets)
def test_a_skipped_prompt_is_granted_a_window(view: list[RowView], budget: int) -> None:
    waiting = [row for row in view if not row.in_batch]
    longest = max((row.skipped for row in waiting), default=0)
    if longest >= GRANT_AFTER:
        lengths = {w.id: w.length for w in plan(view, budget).windows}
        assert next(row for row in waiting if row.skipped == longest).id in lengths


@given(rows(), budgets)
def test_windows_end_at_borders_where_they_can(view: list[RowView], budget: int) -> None:
    by_id = {row.id: row for row in view}
    for window in plan(view, budget, KEY_BLOCK).windows:
        row = by_id[window.id]
        end = row.computed + window.length
        next_border = (row.computed // KEY_BLOCK + 1) * KEY_BLOCK
        assert window.length == row.pending or end % KEY_BLOCK == 0 or end < next_border


@given(rows(), budgets)
def test_equal_views_give_equal_plans(view: list[RowView], budget: int) -> None:
    assert plan(view, budget) == plan(list(view), budget)


@given(rows(), budgets, st.integers(1, 900))
def test_a_suspect_runs_alone(view: list[RowView], budget: int, pending: int) -> None:
    chosen = plan([*view, RowView("s", pending, False, suspect=True)], budget)
    assert chosen.decode == ()
    assert [w.id for w in chosen.windows] == ["s"]


@given(
    st.integers(16, 256),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(-1, 1)), min_size=1, max_size=6),
)
def test_streams_and_prompts_advance_together(budget: int, prompts: list[tuple[int, int]]) -> None:
    """Three streams beside prompts of any size and priority: streams move in every step, and no prompt waits
    longer than grants allow, whoever comes before it."""
    left = {f"p{i}": tokens for i, (tokens, _) in enumerate(prompts)}
    skipped = dict.fromkeys(left, 0)
    streams = [RowView(f"s{i}", 1, True) for i in range(3)]
    while any(left.values()):
        view = [
            RowView(id, n, False, computed=prompts[i][0] - n, priority=prompts[i][1], skipped=skipped[id])
            for i, (id, n) in enumerate(left.items())
            if n
        ]
        chosen = plan([*streams, *view], budget)
        assert len(chosen.decode) == 3 and chosen.windows
        moved = {w.id for w in chosen.windows}
        for window in chosen.windows:
            left[window.id] -= window.length
        for row in view:
            skipped[row.id] = 0 if row.id in moved else skipped[row.id] + 1
            assert skipped[row.id] <= GRANT_AFTER + len(prompts)
