"""The engine keeps the equality contract, and one row's fate is nobody else's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.cache.arrays import ArrayState
from ingle.config import EngineConfig
from ingle.contracts.request import Request, SamplingParams
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.errors import ContextOverflow, EngineStopped, InvalidRequest, QueueFull
from support.collect import Collector
from support.toy import NOT_A_NUMBER, POISON, VOCAB, ToyGraph

INFO = EngineInfo(vocab_size=VOCAB, context_length=700, backend="toy")


def make_engine(**config: Any) -> Engine:
    return Engine(ToyGraph, INFO, EngineConfig(**config), row_invariant=False)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = make_engine(max_rows=4, window_tokens=16)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[Engine]:
    """One row at a time, whole prompts: what every schedule is compared with."""
    engine = make_engine(max_rows=1, window_tokens=512)
    yield engine
    engine.close()


_counter = iter(range(10**9))


def request(prompt: list[int], **sampling: object) -> Request:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return Request(id=f"r{next(_counter)}", prompt=tuple(prompt), sampling=params)


def run(engine: Engine, wanted: Request) -> list[int]:
    got = Collector()
    engine.submit(wanted, got)
    assert got.wait(wanted.id).reason == "length"
    return got.tokens(wanted.id)


prompts = st.lists(st.integers(0, POISON - 1), min_size=1, max_size=60)
samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "seed": st.integers(0, 2**64 - 1),
        "top_p": st.sampled_from([1.0, 0.8]),
        "top_k": st.sampled_from([0, 5]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.2]),
        "max_tokens": st.integers(1, 24),
    }
)


@settings(max_examples=25)
@given(data=st.data())
def test_tokens_do_not_depend_on_the_schedule(engine: Engine, patient: Engine, data: st.DataObject) -> None:
    """Random arrivals, batch mates, window borders and cancels: each request gets what it gets alone."""
    jobs = [request(data.draw(prompts), **data.draw(samplings)) for _ in range(data.draw(st.integers(1, 7)))]
    doomed = [request(data.draw(prompts), max_tokens=200) for _ in range(data.draw(st.integers(0, 2)))]
    got = Collector()
    order = data.draw(st.permutations([*jobs, *doomed]))
    for number, job in enumerate(order):
        engine.submit(job, got)
        if data.draw(st.booleans()):
            got.wait_tokens(order[data.draw(st.integers(0, number))].id, 1)
    for job in doomed:
        engine.cancel(job.id)
    for job in jobs:
        assert got.wait(job.id).reason == "length"
    for job in doomed:
        assert got.wait(job.id).reason in ("cancelled", "length")
    for job in jobs:
        alone = Request(id=job.id + "-alone", prompt=job.prompt, sampling=job.sampling)
        assert got.tokens(job.id) == run(patient, alone)


def test_seeds_differ_and_repeat(patient: Engine) -> None:
    one, again, other = (run(patient, request([1, 2, 3], max_tokens=20, seed=s)) for s in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_failing_row_fails_alone(engine: Engine, patient: Engine) -> None:
    got = Collector()
    good = [request([i + 1, 2, 3], max_tokens=30, seed=i) for i in range(3)]
    for job in good:
        engine.submit(job, got)
    got.wait_tokens(good[0].id, 3)
    bad = request([5, POISON, 6], max_tokens=5)
    engine.submit(bad, got)
    finished = got.wait(bad.id)
    assert finished.reason == "error"
    assert finished.detail is not None and "poisoned token" in finished.detail
    for job in good:
        assert got.wait(job.id).reason == "length"
        alone = Request(id=job.id + "-alone", prompt=job.prompt, sampling=job.sampling)
        assert got.tokens(job.id) == run(patient, alone)


def test_values_that_are_not_numbers_end_their_own_row(engine: Engine) -> None:
    got = Collector()
    good, bad = request([3, 4], max_tokens=10, temperature=0.0), request([5, NOT_A_NUMBER], max_tokens=10)
    expected = run(engine, Request(id="expected", prompt=good.prompt, sampling=good.sampling))
    engine.submit(bad, got)
    engine.submit(good, got)
    finished = got.wait(bad.id)
    assert finished.reason == "error" and "not finite" in (finished.detail or "")
    assert got.wait(good.id).reason == "length"
    assert got.tokens(good.id) == expected


def test_stop_tokens_end_a_row_and_are_not_put_out(patient: Engine) -> None:
    plain = run(patient, request([9, 8, 7], max_tokens=12, temperature=0.0))
    stop = plain[4]
    first = plain.index(stop)
    got = Collector()
    job = request([9, 8, 7], max_tokens=12, temperature=0.0, stop_token_ids=(stop,))
    patient.submit(job, got)
    finished = got.wait(job.id)
    assert (finished.reason, finished.stop_token) == ("stop", stop)
    assert got.tokens(job.id) == plain[:first]
    longer = request([9, 8, 7], max_tokens=12, min_tokens=8, temperature=0.0, stop_token_ids=(stop,))
    patient.submit(longer, got)
    got.wait(longer.id)
    assert len(got.tokens(longer.id)) >= 8
    assert stop not in got.tokens(longer.id)


def test_cancel_at_any_point(engine: Engine) -> None:
    got = Collector()
    blockers = [request([1], max_tokens=400) for _ in range(4)]
    for job in blockers:
        engine.submit(job, got)
    waiting = request([2], max_tokens=400)
    engine.submit(waiting, got)
    engine.cancel(waiting.id, "client gone")
    finished = got.wait(waiting.id)
    assert (finished.reason, finished.detail) == ("cancelled", "client gone")
    engine.cancel(blockers[0].id)
    prefilling = request([3] * 600, max_tokens=10)
    engine.submit(prefilling, got)
    engine.cancel(prefilling.id)
    assert got.wait(prefilling.id).reason == "cancelled"
    got.wait_tokens(blockers[1].id, 2)
    for job in blockers:
        engine.cancel(job.id)
        assert got.wait(job.id).reason == "cancelled"
    engine.cancel("never heard of it")
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_bytes) == (0, 0, 0)


def test_the_queue_is_bounded() -> None:
    engine = make_engine(max_rows=1, max_waiting=2)
    got = Collector()
    jobs = [request([1], max_tokens=600) for _ in range(3)]
    for job in jobs:
        engine.submit(job, got)
    with pytest.raises(QueueFull, match="limit is 3"):
        engine.submit(request([1]), got)
    engine.cancel(jobs[1].id)
    got.wait(jobs[1].id)
    engine.submit(request([1]), got)
    engine.close()


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "message"),
    [
        ([], {}, InvalidRequest, "no tokens"),
        ([VOCAB], {}, InvalidRequest, f"token id {VOCAB}"),
        ([-1], {}, InvalidRequest, "token id -1"),
        ([1], {"logit_bias": {VOCAB + 5: 1.0}}, InvalidRequest, f"token id {VOCAB + 5}"),
        ([1], {"stop_token_ids": (10**6,), "min_tokens": 1}, InvalidRequest, "token id 1000000"),
        ([1] * 690, {"max_tokens": 11}, ContextOverflow, "690 prompt tokens and max_tokens 11 make 701"),
    ],
)
def test_what_the_model_cannot_run_is_refused_at_the_door(
    engine: Engine, prompt: list[int], sampling: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.submit(request(prompt, **sampling), Collector())
    assert len(run(engine, request([1], max_tokens=2))) == 2


def test_one_delivery_for_a_step(engine: Engine) -> None:
    got = Collector()
    jobs = [request([1, 2], max_tokens=40) for _ in range(4)]
    for job in jobs:
        engine.submit(job, got)
    for job in jobs:
        got.wait(job.id)
    assert got.deliveries < 4 * 40, "events of one step travel together"


def test_a_subscriber_that_raises_loses_only_its_own(engine: Engine) -> None:
    class Broken:
        def deliver(self, events: object) -> None:
            raise RuntimeError("reader is gone")

    engine.submit(request([1], max_tokens=300), Broken())
    assert len(run(engine, request([4], max_tokens=8))) == 8
    settled = threading.Event()
    for _ in range(200):
        if engine.stats().running == 0:
            break
        settled.wait(0.02)
    assert engine.stats().running == 0


def test_close_ends_everything_with_a_reason() -> None:
    engine = make_engine(max_rows=1)
    got = Collector()
    jobs = [request([1], max_tokens=600) for _ in range(3)]
    for job in jobs:
        engine.submit(job, got)
    engine.close("good night")
    for job in jobs:
        finished = got.wait(job.id)
        assert (finished.reason, finished.detail) == ("cancelled", "good night")
    with pytest.raises(EngineStopped, match="good night"):
        engine.submit(request([1]), got)
    assert not engine.stats().alive
    engine.close()


def test_a_graph_that_cannot_be_built_leaves_no_thread() -> None:
    def broken() -> ToyGraph:
        raise ValueError("no such model")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no such model"):
        Engine(broken, INFO, EngineConfig(), row_invariant=False)
    assert threading.active_count() == before


def test_duplicate_ids_are_refused(engine: Engine) -> None:
    job = request([1], max_tokens=300)
    got = Collector()
    engine.submit(job, got)
    with pytest.raises(InvalidRequest, match="in use"):
        engine.submit(job, got)
    engine.cancel(job.id)
    got.wait(job.id)


def test_logprobs_are_those_of_the_model(patient: Engine) -> None:
    got = Collector()
    job = request([7, 8], max_tokens=6, temperature=0.0, top_logprobs=3)
    patient.submit(job, got)
    got.wait(job.id)
    entries = got.logprobs(job.id)
    assert len(entries) == 6
    for token, entry in zip(got.tokens(job.id), entries, strict=True):
        assert len(entry.top) == 3
        assert entry.top[0] == (token, entry.logprob)
        assert entry.logprob >= entry.top[1][1] >= entry.top[2][1]
    biased = request([7, 8], max_tokens=1, temperature=0.0, logit_bias={11: 100.0}, top_logprobs=1)
    patient.submit(biased, got)
    got.wait(biased.id)
    assert got.tokens(biased.id) == [11]
    assert got.logprobs(biased.id)[0].logprob < -1.0, "bias changes the choice, not the reported model"


def test_a_batch_that_cannot_change_loses_nothing(patient: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of building the new batch: no cache is half changed, no token is lost."""
    engine = make_engine(max_rows=4)
    jobs = [request([i + 1, 7], max_tokens=8 * (i + 1), seed=i) for i in range(4)]
    expected = [run(patient, Request(id=j.id + "-alone", prompt=j.prompt, sampling=j.sampling)) for j in jobs]
    select, calls = ArrayState.select, itertools.count()

    def failing(self: ArrayState, keep: Sequence[int], joining: Sequence[ArrayState] = ()) -> ArrayState:
        out = select(self, keep, joining)
        if next(calls) in (0, 2):
            raise MemoryError("no room")
        return out

    monkeypatch.setattr(ArrayState, "select", failing)
    got = Collector()
    for job in jobs:
        engine.submit(job, got)
    for job, tokens in zip(jobs, expected, strict=True):
        assert got.wait(job.id).reason == "length"
        assert got.tokens(job.id) == tokens
    engine.close()
    assert next(calls) > 4


def test_long_decoding_keeps_memory_flat() -> None:
    """Nothing lazy piles up: after the buffers have their size, thousands of steps add no bytes."""
    engine = make_engine(max_rows=2)
    got = Collector()
    jobs = [request([1, 2], max_tokens=650, seed=i) for i in range(2)]
    for job in jobs:
        engine.submit(job, got)
    sizes: list[int] = []
    for count in (300, 400, 500, 600):
        got.wait_tokens(jobs[0].id, count)
        sizes.append(mx.get_active_memory())
    for job in jobs:
        got.wait(job.id)
    engine.close()
    assert max(sizes) - min(sizes) < 512 * 1024, sizes
