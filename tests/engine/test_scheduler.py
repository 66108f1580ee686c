"""The planner keeps its promises for any queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingle.engine.scheduler import Budget, QueueView, RowView, plan

rows = st.builds(lambda pending, in_batch: (pending, in_batch), st.integers(1, 2000), st.booleans())


@st.composite
def views(draw: st.DrawFn) -> QueueView:
    running = [
        RowView(f"r{i}", 1 if in_batch else pending, in_batch)
        for i, (pending, in_batch) in enumerate(draw(st.lists(rows, max_size=12)))
    ]
    waiting = [
        RowView(f"w{i}", n, False) for i, n in enumerate(draw(st.lists(st.integers(1, 2000), max_size=12)))
    ]
    return QueueView(running, waiting)


budgets = st.builds(Budget, st.integers(1, 16), st.integers(1, 512))


@given(views(), budgets)
def test_every_decode_row_runs_and_windows_share_the_rest(view: QueueView, budget: Budget) -> None:
    chosen = plan(view, budget)
    assert chosen.decode == tuple(row.id for row in view.running if row.in_batch)
    assert sum(w.length for w in chosen.windows) <= budget.window_tokens
    by_id = {row.id: row for row in (*view.running, *view.waiting)}
    assert all(1 <= w.length <= by_id[w.id].pending for w in chosen.windows)
    ids = [*chosen.decode, *(w.id for w in chosen.windows)]
    assert len(ids) == len(set(ids))


@given(views(), budgets)
def test_work_is_never_left_while_there_is_room(view: QueueView, budget: Budget) -> None:
    chosen = plan(view, budget)
    prompts = [row for row in view.running if not row.in_batch]
    if prompts:
        assert chosen.windows[0].id == prompts[0].id, "the oldest prompt always moves"
    if view.waiting and len(view.running) < budget.max_rows and not prompts:
        assert chosen.admitted[0] == view.waiting[0].id
    assert chosen.empty == (not view.running and not view.waiting)


@given(views(), budgets)
def test_admission_is_first_come_and_bounded(view: QueueView, budget: Budget) -> None:
    chosen = plan(view, budget)
    assert list(chosen.admitted) == [row.id for row in view.waiting[: len(chosen.admitted)]]
    assert len(view.running) + len(chosen.admitted) <= max(budget.max_rows, len(view.running))
    assert set(chosen.admitted) <= {w.id for w in chosen.windows}


@given(views(), budgets)
def test_equal_views_give_equal_plans(view: QueueView, budget: Budget) -> None:
    assert plan(view, budget) == plan(view, budget)


@given(views(), budgets, st.integers(1, 900))
def test_a_suspect_runs_alone(view: QueueView, budget: Budget, pending: int) -> None:
    suspect = RowView("s", pending, False, suspect=True)
    chosen = plan(QueueView([*view.running, suspect], view.waiting), budget)
    assert chosen.decode == () and chosen.admitted == ()
    assert [w.id for w in chosen.windows] == ["s"]


def test_streams_and_a_long_prompt_advance_together() -> None:
    """Three streams, a prompt of four windows, a short prompt behind it: nobody waits for the end of another."""
    streams = [RowView(f"s{i}", 1, True) for i in range(3)]
    left = {"long": 1000, "short": 10}
    steps = 0
    while any(left.values()):
        waiting = [RowView(id, n, False) for id, n in left.items() if n]
        chosen = plan(QueueView([*streams, *waiting], []), Budget(16, 256))
        assert len(chosen.decode) == 3
        for window in chosen.windows:
            left[window.id] -= window.length
        steps += 1
    assert steps == 4
