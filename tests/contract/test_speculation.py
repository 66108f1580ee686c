"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from ingle.cache.arrays import ArrayState
from ingle.cache.recurrent import Carried
from ingle.cache.rows import RowCache
from ingle.contracts.graph import ModelGraph
from ingle.contracts.request import Request, SamplingParams
from ingle.decoding import sampler
from ingle.engine.residents import Residents
from ingle.engine.rows import Row
from ingle.models.gemma4_assistant import Gemma4Assistant
from ingle.speculative.assistant import AssistantSource
from ingle.speculative.draft_rows import DraftModelSource
from ingle.speculative.ngram import NgramSource
from ingle.speculative.source import DraftBatch, DraftSource, Proposal
from ingle.weights.checkpoint import open_checkpoint
from support import drafting
from support.collect import Collector
from support.drafting import FixedPolicy
from support.equality import (
    FIXTURES,
    SUBJECTS,
    Subject,
    busy_hour,
    run_machine,
    state_is_that_of_windows,
)
from support.grammars import grammars
from support.toy import ToyGraph

Make = Callable[[Subject, ModelGraph], Sequence[DraftSource]]
SOURCES: dict[str, Make] = {
    "right for a while": lambda subject, graph: [drafting.right_for_a_while(subject)],
    "always right": lambda subject, graph: [drafting.always_right(subject)],
    "anything": lambda subject, graph: [drafting.anything(subject)],
    "always wrong": lambda subject, graph: [drafting.always_wrong(subject)],
    "n-gram": lambda subject, graph: [NgramSource((2, 1))],
    "itself": lambda subject, graph: [DraftModelSource(subject.build(), row_invariant=subject.exact)],
}
ASSISTED = ["gemma4_e", "gemma4_dense"]


def assistant(name: str) -> Make:
    def make(subject: Subject, graph: ModelGraph) -> Sequence[DraftSource]:
        target = open_checkpoint(FIXTURES / name)
        own = open_checkpoint(FIXTURES / f"{name}_assistant")
        graph_of_assistant = Gemma4Assistant(own.config, own.weights, mx.float32, target.config)
        return AssistantSource(graph_of_assistant, graph), NgramSource((2, 1))

    return make


def other_model(subject: Subject, graph: ModelGraph) -> Sequence[DraftSource]:
    """One that is mostly wrong, with a recurrent layer: what it carries goes back and forth."""
    return [DraftModelSource(ToyGraph(seed=5, vocab=subject.vocab, recurrent=True), row_invariant=False)]


def uneven() -> FixedPolicy:
    return FixedPolicy([3, 0, 4, 1, 2, 7, 0, 5])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_fixed_schedule_holds_with_any_source(name: str, source: str) -> None:
    subject = SUBJECTS[name](drafts=SOURCES[source], policy=uneven)
    busy_hour(subject)
    subject.close()


@pytest.mark.parametrize("name", ASSISTED)
def test_the_fixed_schedule_holds_with_an_assistant(name: str) -> None:
    subject = SUBJECTS[name](drafts=assistant(name), policy=uneven)
    busy_hour(subject)
    subject.close()


@pytest.mark.parametrize("name", ["toy", "llama"])
def test_the_fixed_schedule_holds_with_another_model(name: str) -> None:
    subject = SUBJECTS[name](drafts=other_model, policy=uneven)
    busy_hour(subject)
    subject.close()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_drafter_that_is_its_target_is_always_right(name: str, temperature: float) -> None:
    """Sampled too, since both draw with the same noise; through joining, leaving, pauses and rounds without."""
    subject = SUBJECTS[name](drafts=SOURCES["itself"], policy=uneven)
    engine, got = subject.engine(), Collector()
    ids = [f"r{i}" for i in range(6)]
    for number, id in enumerate(ids):
        prompt = subject.beginnings[number % 4].ids
        sampling = SamplingParams(temperature=temperature, seed=number, max_tokens=30 + 7 * number)
        engine.submit(Request(id=id, prompt=prompt, sampling=sampling), got)
        engine.step(5)
        if number == 3:
            engine.between_steps(lambda rows: rows._pause(next(iter(rows.running.values()))))  # pyright: ignore[reportPrivateUsage]
    engine.finish()
    finished = [got.wait(id, 5) for id in ids]
    assert all(f.drafted > 20 and f.reason == "length" for f in finished), finished
    if subject.exact:
        assert all(f.accepted == f.drafted for f in finished), finished
    engine.close()
    subject.close()


EVERYTHING = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {5: 6.0, 9: -100.0, 11: 3.0}},
    "at least so many": {"min_tokens": 25, "stop_token_ids": tuple(range(3, 40))},
    "stop tokens": {"stop_token_ids": tuple(range(3, 12))},
    "all": {
        "repetition_penalty": 1.2, "frequency_penalty": 0.2, "logit_bias": {7: 4.0}, "min_tokens": 9,
        "stop_token_ids": tuple(range(3, 9)), "top_k": 12, "top_p": 0.95, "min_p": 0.02,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "grammar"),
    [*((name, 0) for name in EVERYTHING), *((name, g) for name in ("nothing", "all") for g in (1, 2, 3))],
)
@pytest.mark.parametrize("name", ["toy", "llama"])
def test_what_depends_on_the_tokens_before_follows_each_draft(name: str, options: str, grammar: int) -> None:
    """Histories and grammars advance with each drafted position and roll back; stop tokens end what is accepted."""
    plain, drafted = SUBJECTS[name](), SUBJECTS[name](drafts=any_of_it, policy=uneven)
    got: list[Collector] = []
    for subject in (plain, drafted):
        engine = subject.engine()
        got.append(Collector())
        for seed in range(6):
            fields: dict[str, Any] = {"max_tokens": 60, "top_logprobs": 2, **EVERYTHING.get(options, {})}
            sampling = SamplingParams(temperature=0.7 * (seed % 2), seed=seed, **fields)
            prompt = subject.beginnings[seed % 4].ids[:40]
            rules = grammars(subject.vocab)[grammar]
            engine.submit(Request(id=str(seed), prompt=prompt, sampling=sampling, grammar=rules), got[-1])
            engine.step(2)
        engine.finish()
        assert (engine.stats().grammar_masks > 0) == (grammar > 0)
        if subject is drafted and grammar == 0:
            assert engine.stats().accepted_tokens > 0
        engine.close()
        subject.close()
    for seed in range(6):
        one, other = (c.wait(str(seed), 5) for c in got)
        assert (one.reason, one.stop_token) == (other.reason, other.stop_token)
        assert got[0].tokens(str(seed)) == got[1].tokens(str(seed))
        if plain.exact:
            assert got[0].logprobs(str(seed)) == got[1].logprobs(str(seed))


def any_of_it(subject: Subject, graph: ModelGraph) -> Sequence[DraftSource]:
    """Itself, which does not see penalties' effect on drafts: right often, and often not."""
    return [DraftModelSource(subject.build(), row_invariant=subject.exact)]


@pytest.mark.parametrize("rejected", range(5))
@pytest.mark.parametrize("length", [12, 14, 15, 16, 17, 18, 31, 63, 64, 65, 130])
def test_rejects_at_each_position_across_the_windows_edge(length: int, rejected: int) -> None:
    """Four drafts a round, of which the same number is wrong each time, with a window of 16 (C1)."""

    def make(subject: Subject, graph: ModelGraph) -> Sequence[DraftSource]:
        def propose(row: Row, depth: int) -> list[int]:
            said = subject.reference(row.request)[0][len(row.output) : len(row.output) + depth]
            return [(t + (i == 4 - rejected)) % subject.vocab for i, t in enumerate(said)]

        return [drafting.Source(propose)]

    subject = gemma3_subject(make)
    engine, got = subject.engine(), Collector()
    prompt = subject.beginnings[1].ids[:length]
    request = Request(id="r", prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=24))
    engine.submit(request, got)
    for _ in range(4):
        engine.step(2)
        engine.between_steps(lambda rows: state_is_that_of_windows(subject, rows))
    engine.finish()
    assert got.tokens("r") == subject.reference(request)[0]
    finished = got.wait("r", 5)
    assert finished.accepted <= finished.drafted and (finished.accepted > 0 or rejected == 4)
    engine.close()
    subject.close()


def gemma3_subject(make: Make) -> Subject:
    return SUBJECTS["gemma3"](drafts=make, policy=lambda: FixedPolicy([4]))


def test_a_source_that_fails_costs_nobody_anything() -> None:
    class Failing(drafting.Source):
        def propose(self, batch: DraftBatch, depths: Sequence[int]) -> list[Proposal]:
            raise RuntimeError("no drafts today")

    subject = SUBJECTS["llama"](drafts=lambda s, g: [Failing(lambda row, depth: [])], policy=uneven)
    engine, got = subject.engine(), Collector()
    request = Request(
        id="r", prompt=(5, 6, 7), sampling=SamplingParams(temperature=0.0, max_tokens=9, top_logprobs=0)
    )
    engine.submit(request, got)
    engine.finish()
    assert got.tokens("r") == subject.reference(request)[0]
    assert engine.stats().failed_drafts > 0
    engine.close()
    subject.close()


def test_drafts_that_do_not_fit_are_left_out() -> None:
    """Memory for one block more than the prompt: nobody is paused for the sake of drafts."""
    subject = SUBJECTS["llama"](drafts=SOURCES["always right"], policy=uneven)
    engine, got = subject.engine(), Collector()

    def fill(rows: Residents) -> None:
        rows.admission.kv_bytes = rows.admission.used(list(rows.running.values()))

    request = Request(id="r", prompt=tuple(range(3, 63)), sampling=SamplingParams(max_tokens=30))
    engine.submit(request, got)
    engine.step(2)
    engine.between_steps(fill)
    engine.finish()
    assert got.tokens("r") == subject.reference(request)[0]
    assert engine.stats().paused == 0
    engine.close()
    subject.close()


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_but_the_request_decides(name: str) -> None:
    run_machine(SUBJECTS[name](drafts=SOURCES["right for a while"], policy=uneven), examples=5)


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
