"""KV rows behave like independent lists, whatever is appended, taken back, dropped or joined."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.cache.retention import Retention
from ingle.cache.rows import RowCache
from ingle.contracts.cache import KEY_BLOCK
from ingle.kernels import ops

WINDOW, SLACK = 70, 5
RETENTIONS = {"full": Retention(), "sliding": Retention(WINDOW, SLACK)}


def block(rows: list[list[float]]) -> mx.array:
    """[rows, 2 heads, length, 4] whose every value is the token's own number."""
    values = mx.array(rows, mx.float32)[:, None, :, None]
    return mx.broadcast_to(values, (len(rows), 2, values.shape[2], 4))


def make(rows: int, retention: Retention) -> RowCache:
    return RowCache(rows, retention, 2, 4, mx.float32)


def check(cache: RowCache, model: list[list[float]], retention: Retention) -> None:
    assert cache.lengths == tuple(len(row) for row in model)
    donor = cache.donor()
    for r, row in enumerate(model):
        base = donor.bases[r]
        assert base % KEY_BLOCK == 0
        needed = 0 if retention.window is None else max(0, len(row) - retention.window + 1)
        assert base <= needed
        for stored, sign in ((ops.keys_in_order(donor.keys), 1), (donor.values, -1)):
            held = stored[r, 1, : donor.ends[r] - base, 3].tolist()
            assert held == [sign * value for value in row[base:]]


@pytest.mark.parametrize("kind", RETENTIONS)
@given(data=st.data())
def test_rows_behave_like_independent_sequences(kind: str, data: st.DataObject) -> None:
    retention = RETENTIONS[kind]
    cache = make(1, retention)
    counter = 0.0
    model: list[list[float]] = [[]]

    def append(target: RowCache, rows: list[list[float]], length: int) -> None:
        nonlocal counter
        new = [[counter + 1000 * r + i for i in range(length)] for r in range(len(rows))]
        counter += length
        target.append(block(new), -block(new))
        for row, values in zip(rows, new, strict=True):
            row.extend(values)

    append(cache, model, data.draw(st.integers(1, 300)))
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["decode", "window", "trim", "keep", "join"])):
            case "decode":
                for _ in range(data.draw(st.integers(1, 5))):
                    append(cache, model, 1)
            case "window":
                append(cache, model, data.draw(st.integers(2, 200)))
            case "trim":
                counts = [data.draw(st.integers(0, min(SLACK, len(row) - 1))) for row in model]
                for row, count in zip(model, counts, strict=True):
                    del row[len(row) - count :]
                cache.trim(counts)
                append(cache, model, SLACK)  # slack is full again
            case "keep":
                rows = st.lists(st.sampled_from(range(len(model))), min_size=1, unique=True)
                kept = data.draw(rows)
                cache = cache.select(kept)
                model = [model[r] for r in kept]
            case _:
                other, rows = make(1, retention), [[]]
                append(other, rows, data.draw(st.integers(1, 300)))
                cache = cache.select(range(cache.rows), [other])
                model = [*model, *rows]
        check(cache, model, retention)


def test_snapshot_never_sees_later_writes() -> None:
    cache = make(1, Retention())
    cache.append(block([[1, 2, 3]]), block([[1, 2, 3]]))
    before = cache.snapshot()
    cache.append(block([[9]]), block([[9]]))
    cache.trim([4])
    cache.append(block([[7]]), block([[7]]))
    assert before.lengths == (3,)
    assert ops.keys_in_order(before.donor().keys)[0, 0, :3, 0].tolist() == [1, 2, 3]


def test_view_keeps_its_offsets_when_the_cache_moves_on() -> None:
    cache = make(1, Retention())
    view = cache.append(block([[1, 2]]), block([[1, 2]]))
    cache.append(block([[3]]), block([[3]]))
    assert view.offsets == (0,)
    assert cache.lengths == (3,)


def test_trim_past_what_is_held_is_refused() -> None:
    cache = make(1, RETENTIONS["sliding"])
    for start in range(0, 600, 200):
        values = block([[float(start + i) for i in range(200)]])
        cache.append(values, values)
    with pytest.raises(ValueError, match="cannot take back 500 of 600"):
        cache.trim([500])
    with pytest.raises(ValueError, match="cannot take back"):
        cache.trim([-1])
    cache.trim([SLACK])
    assert cache.lengths == (595,)


def test_sliding_rows_stay_bounded() -> None:
    cache = make(2, RETENTIONS["sliding"])
    for i in range(1500):
        one = block([[float(i)], [float(i)]])
        cache.append(one, one)
        mx.eval(cache.state)
    assert cache.columns <= 512
    assert cache.lengths == (1500, 1500)


def test_a_row_without_tokens_cannot_join() -> None:
    cache = make(1, Retention())
    cache.append(block([[1]]), block([[1]]))
    with pytest.raises(ValueError, match="after its first token"):
        cache.select([0], [make(1, Retention())])
