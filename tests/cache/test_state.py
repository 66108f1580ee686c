"""Rows behave like independent lists, whatever is appended, taken back, dropped, joined, shared or adopted."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.cache.arrays import ArrayState
from ingle.cache.tables import TableState
from ingle.contracts.cache import KEY_BLOCK, KVKind, Retention, RowState, StateLayout
from ingle.kernels import native

WINDOW, SLACK = 70, 5
LAYOUT = StateLayout.of(
    [
        KVKind(1, 2, 4, Retention(WINDOW, SLACK)),
        KVKind(1, 2, 4, Retention()),
        KVKind(1, 2, 4, Retention(WINDOW, SLACK)),
    ]
)
FORMS = [
    "arrays",
    pytest.param("tables", marks=pytest.mark.skipif(not native.available(), reason="no extension")),
]


def make(form: str, rows: int, layout: StateLayout = LAYOUT) -> RowState:
    return TableState(layout, rows) if form == "tables" else ArrayState(layout, rows, mx.float32)


def append(state: RowState, rows: list[list[float]]) -> None:
    """Every value of a token is its own number, with the layer's sign and size."""
    state.reserve(len(rows[0]))
    tokens = mx.broadcast_to(mx.array(rows, mx.float32)[:, None, :, None], (len(rows), 2, len(rows[0]), 4))
    for layer in range(len(state.layout.places)):
        state.write(layer, tokens * (layer + 1), -tokens)
    state.advance([len(rows[0])] * len(rows))


def check(state: RowState, model: list[list[float]]) -> None:
    assert state.lengths == tuple(len(row) for row in model)
    for layer, (kind, _) in enumerate(state.layout.places):
        window = state.layout.kinds[kind].retention.window
        for r, row in enumerate(model):
            base, keys, values = state.contents(layer, r)
            assert base % KEY_BLOCK == 0
            assert base <= (0 if window is None else max(0, len(row) - window + 1))
            assert keys[1, :, 3].tolist() == [value * (layer + 1) for value in row[base:]]
            assert values[0, :, 0].tolist() == [-value for value in row[base:]]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_rows_behave_like_independent_sequences(form: str, data: st.DataObject) -> None:
    state = make(form, 1)
    counter = 0.0
    model: list[list[float]] = [[]]

    def more(target: RowState, rows: list[list[float]], length: int) -> None:
        nonlocal counter
        new = [[counter + 1000 * r + i for i in range(length)] for r in range(len(rows))]
        counter += length
        append(target, new)
        for row, values in zip(rows, new, strict=True):
            row.extend(values)

    more(state, model, data.draw(st.integers(1, 300)))
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["decode", "window", "trim", "keep", "join", "adopt"])):
            case "decode":
                for _ in range(data.draw(st.integers(1, 5))):
                    more(state, model, 1)
            case "window":
                more(state, model, data.draw(st.integers(2, 200)))
            case "trim":
                counts = [data.draw(st.integers(0, min(SLACK, len(row) - 1))) for row in model]
                for row, count in zip(model, counts, strict=True):
                    del row[len(row) - count :]
                state.trim(counts)
                more(state, model, SLACK)  # slack is full again
            case "keep":
                rows = st.lists(st.sampled_from(range(len(model))), min_size=1, unique=True)
                kept = data.draw(rows)
                state = state.select(kept)
                model = [model[r] for r in kept]
            case "join":
                other, rows = make(form, 1), [[]]
                more(other, rows, data.draw(st.integers(1, 300)))
                state = state.select(range(state.rows), [other])
                model = [*model, *rows]
            case _:  # another row begins with the whole blocks of one, as far as all kinds hold them
                r = data.draw(st.integers(0, len(model) - 1))
                held = [state.held(r, kind) for kind in range(len(LAYOUT.kinds))]
                end = held[0].stop
                wanted = [kind.retention.first_kept(end * KEY_BLOCK) // KEY_BLOCK for kind in LAYOUT.kinds]
                if end == 0 or any(h.start > w for h, w in zip(held, wanted, strict=True)):
                    continue
                blocks = [[state.share(r, kind, b) for b in range(w, end)] for kind, w in enumerate(wanted)]
                other = make(form, 1)
                other.adopt(end * KEY_BLOCK, blocks, ())
                rows = [model[r][: end * KEY_BLOCK]]
                state.replace(r, 0, end - 1, other.share(0, 0, end - 1))
                more(other, rows, data.draw(st.integers(1, 100)))
                state = state.select(range(state.rows), [other])
                model = [*model, *rows]
        check(state, model)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_step_wrote_counts_when_it_advances(form: str) -> None:
    state = make(form, 1)
    append(state, [[1, 2]])
    state.reserve(3)
    tokens = mx.ones((1, 2, 3, 4))
    assert state.write(1, tokens, tokens).offsets == (2,)
    assert state.lengths == (2,)


@pytest.mark.parametrize("form", FORMS)
def test_snapshot_never_sees_later_writes(form: str) -> None:
    state = make(form, 1)
    append(state, [[1, 2, 3]])
    before = state.snapshot()
    append(state, [[9]])
    state.trim([4])
    append(state, [[7]])
    check(before, [[1, 2, 3]])
    check(state, [[7]])
    append(before, [[5] * 100])
    check(before, [[1, 2, 3, *[5] * 100]])


@pytest.mark.parametrize("form", FORMS)
def test_a_held_view_keeps_its_positions_when_the_row_moves_on(form: str) -> None:
    """Layers that share a donor's KV read the view after the row has advanced."""
    state = make(form, 1)
    append(state, [[1, 2]])
    state.reserve(1)
    one = mx.ones((1, 2, 1, 4))
    view = state.write(1, one, one)
    state.advance([1] * state.rows)
    append(state, [[3, 4, 5]])
    assert view.offsets == (2,)
    assert state.lengths == (6,)


@pytest.mark.parametrize("form", FORMS)
def test_trim_past_what_is_held_is_refused(form: str) -> None:
    state = make(form, 1)
    for start in range(0, 600, 200):
        append(state, [[float(start + i) for i in range(200)]])
    with pytest.raises(ValueError, match="cannot take back 500 of 600"):
        state.trim([500])
    with pytest.raises(ValueError, match="cannot take back"):
        state.trim([-1])
    state.trim([SLACK])
    assert state.lengths == (595,)


@pytest.mark.parametrize("form", FORMS)
def test_sliding_rows_stay_bounded(form: str) -> None:
    layout = StateLayout.of([KVKind(1, 2, 4, Retention(WINDOW, SLACK))])
    state = make(form, 2, layout)
    for i in range(1500):
        append(state, [[float(i)], [float(i)]])
        mx.eval(state.arrays)
    assert state.nbytes <= 2 * 512 * 2 * 2 * 4 * 4
    assert state.lengths == (1500, 1500)


@pytest.mark.parametrize("form", FORMS)
def test_lazy_steps_keep_their_order(form: str) -> None:
    """Nothing is evaluated between writes, reads, trims and copies."""
    state = make(form, 1)
    append(state, [[1, 2, 3]])
    state.trim([2])
    append(state, [[4, 5]])
    copy = state.snapshot()
    state.trim([1])
    append(state, [[6]])
    check(state, [[1, 4, 6]])
    check(copy, [[1, 4, 5]])


@pytest.mark.parametrize("form", FORMS)
def test_recurrent_layers_carry_one_value_a_row(form: str) -> None:
    state = make(form, 2, StateLayout.of([KVKind(1, 2, 4, Retention())], ((3,),)))
    assert not state.carried(0).any().item()
    state.carry(0, mx.array([[[1.0] * 3], [[2.0] * 3]]))
    assert not state.carried(0).any().item(), "a step's value counts when it advances"
    append(state, [[1], [2]])
    assert state.carried(0)[:, 0].tolist() == [1, 2]
    (taken,) = state.share_carried(1)
    state = state.select([1, 0])
    assert state.carried(0)[:, 0].tolist() == [2, 1]
    state.carry(0, state.carried(0)[:, None] * 10)
    append(state, [[1], [2]])
    assert (state.carried(0)[:, 0].tolist(), taken[0, 0].item()) == ([20, 10], 2)
    with pytest.raises(ValueError, match="recurrent"):
        state.trim([1, 0])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_carried_goes_back_to_the_accepted_border(form: str) -> None:
    """Rows of different lengths, over several steps; each takes back what it likes."""
    state = make(form, 3, StateLayout.of([KVKind(1, 2, 4, Retention())], ((1,),)))

    def step(behind: list[list[float]], lengths: list[int]) -> None:
        state.reserve(len(behind[0]))
        tokens = mx.broadcast_to(mx.array(behind, mx.float32)[:, None, :, None], (3, 2, len(behind[0]), 4))
        state.write(0, tokens, -tokens)
        state.carry(0, mx.array(behind, mx.float32)[..., None])
        state.advance(lengths, revocable=True)

    step([[1, 2, 3], [11, 12, -1], [-1, -1, -1]], [3, 2, 0])
    assert state.carried(0)[:, 0].tolist() == [3, 12, 0]
    step([[4], [-1], [21]], [1, 0, 1])
    assert (state.carried(0)[:, 0].tolist(), state.lengths) == ([4, 12, 21], (4, 2, 1))
    state.trim([3, 1, 1])
    assert (state.carried(0)[:, 0].tolist(), state.lengths) == ([1, 11, 0], (1, 1, 0))
    with pytest.raises(ValueError, match="recurrent"):
        state.trim([1, 0, 0])
    check(state, [[1], [11], []])
