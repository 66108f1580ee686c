"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import pytest

from ingle.cache.arrays import ArrayState
from ingle.cache.recurrent import Carried
from ingle.cache.rows import RowCache
from ingle.contracts.graph import ModelGraph
from ingle.contracts.request import Request, SamplingParams
from ingle.decoding import sampler
from ingle.models.gemma4_assistant import Gemma4Assistant
from ingle.speculative.assistant import AssistantSource
from ingle.speculative.draft_rows import DraftModelSource
from ingle.speculative.ngram import NgramSource
from ingle.speculative.source import DraftSource
from ingle.weights.checkpoint import open_checkpoint
from support import drafting
from support.collect import Collector
from support.drafting import FixedPolicy
from support.equality import FIXTURES, SUBJECTS, Subject, busy_hour, run_machine
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
