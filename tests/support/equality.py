"""Engines driven at random and by a fixed schedule, and what each request must get whatever happens.

A state machine submits, cancels, steps, pauses, evicts, restores and changes windows at random. Every request must
get what it gets alone on a fresh engine without prompt cache and drafts: its tokens, and with the CPU kernels
its log-probabilities too, bit by bit.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ingle import compose
from ingle.config import EngineConfig
from ingle.contracts.cache import RowState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup
from ingle.contracts.request import ContentSpan, Request, SamplingParams, Started
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.engine.residents import Residents
from ingle.forward.packed import forward
from ingle.kernels import ops
from ingle.speculative.source import DraftSource
from support import gemma4, toy
from support.collect import Collector
from support.grammars import grammars
from support.stepped import SteppedEngine
from support.toy import ToyGraph

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
CONTEXT = 600
ENDED = ("length", "stop")  # a grammar may come to its end


class FixedPace:
    """Windows of one size, so that the machine and not the clock decides where prompts are cut."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def window(self, *, streams: bool) -> int:
        return self._tokens

    def observe(self, *, streams: bool, tokens: int, seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Beginning:
    """Of prompts. It can be cut anywhere but inside a piece of media."""

    ids: tuple[int, ...]
    content: tuple[ContentSpan, ...] = ()

    def cut(self, length: int) -> Beginning:
        length = next((s.end for s in self.content if s.start < length < s.end), length)
        return Beginning(self.ids[:length], tuple(s for s in self.content if s.end <= length))


def text_beginnings() -> list[Beginning]:
    sizes = ((3, 64), (3, 200), (7, 130), (11, 40))
    return [Beginning(tuple((i * step) % 50 + 3 for i in range(n))) for step, n in sizes]


def media_beginnings(*, sounds: bool) -> list[Beginning]:
    """Prompts of pictures, frames and sounds; some begin alike and go on with other pictures of one size."""
    tokens = {"image": 82, "video": 86, "audio": 83}
    pieces = [gemma4.picture("image", c, r, False, seed) for c, r, seed in ((5, 4, 1), (5, 4, 2), (4, 10, 3))]
    pieces += [gemma4.picture("video", 3, 3, False, seed) for seed in (4, 5)]
    pieces.append(gemma4.sound(False) if sounds else gemma4.picture("image", 9, 3, False, 6))
    out: list[Beginning] = []
    for order in ((0, 2, 3, 5), (0, 2, 4, 5), (1, 2), (5, 0)):
        ids, content = [3 + i % 40 for i in range(70)], list[ContentSpan]()
        for block in (pieces[i] for i in order):
            start = len(ids)
            ids += [tokens[block.kind]] * block.soft_tokens
            content.append(ContentSpan(start, len(ids), block.digest, block))
            ids += range(10, 24)
        out.append(Beginning(tuple(ids), tuple(content)))
    return out


class Subject:
    """A graph, and what its requests get alone."""

    def __init__(
        self,
        build: Callable[[], ModelGraph],
        vocab: int,
        *,
        exact: bool,
        beginnings: list[Beginning] | None = None,
        drafts: Callable[[Subject, ModelGraph], Sequence[DraftSource]] | None = None,
        policy: Callable[[], Any] | None = None,
    ) -> None:
        """With `drafts` the engine speculates (what requests get alone never does), as `policy` says."""
        self.build, self.vocab, self.exact = build, vocab, exact
        self._drafts, self._policy = drafts, policy
        self.beginnings = beginnings or text_beginnings()
        media = any(beginning.content for beginning in self.beginnings)
        self.info = EngineInfo(vocab_size=vocab, context_length=CONTEXT, backend="test", takes_media=media)
        self._alone: Engine | None = None
        self._known: dict[Any, Any] = {}

    @property
    def speculates(self) -> bool:
        return self._drafts is not None

    def engine(self, folder: Path | None = None) -> SteppedEngine:
        config = EngineConfig(max_rows=3, max_waiting=100, prompt_cache_dir=folder)
        drafts = self._drafts
        engine = SteppedEngine(
            self.build,
            self.info,
            config,
            row_invariant=self.exact,
            drafts=None if drafts is None else lambda graph: drafts(self, graph),
        )
        if self._policy is not None and engine.speculation is not None:
            engine.speculation.policy = self._policy()
        return engine

    def reference(self, request: Request) -> tuple[list[int], Any]:
        """(tokens, log-probabilities) of the request alone."""
        sampling = request.sampling
        content = request.content
        key = (
            request.prompt,
            content,
            sampling.seed,
            sampling.temperature,
            sampling.max_tokens,
            sampling.top_k,
            None if request.grammar is None else grammars(self.vocab).index(request.grammar),
        )
        if key not in self._known:
            if self._alone is None:
                config = EngineConfig(max_rows=1, window_tokens=512, prompt_cache_bytes=0)
                self._alone = Engine(self.build, self.info, config, row_invariant=self.exact)
            got = Collector()
            id = f"alone-{len(self._known)}"
            self._alone.submit(replace(request, id=id, cache_key=None, priority=0), got)
            assert got.wait(id).reason in ENDED
            self._known[key] = got.tokens(id), got.logprobs(id)
        return self._known[key]

    @cached_property
    def graph(self) -> ModelGraph:
        return self.build()

    def close(self) -> None:
        if self._alone is not None:
            self._alone.close()


def fixture(name: str, beginnings: list[Beginning] | None = None, **options: Any) -> Subject:
    def build() -> ModelGraph:
        return compose.load_graph(FIXTURES / name)[0]

    vocab = compose.load_graph(FIXTURES / name)[1].vocab_size
    exact = ops.row_invariant(mx.float32)
    return Subject(build, vocab, exact=exact, beginnings=beginnings, **options)


SUBJECTS: dict[str, Callable[..., Subject]] = {
    "toy": lambda **o: Subject(lambda: ToyGraph(recurrent=True), toy.POISON, exact=False, **o),
    "llama": lambda **o: fixture("llama", **o),
    "gemma3": lambda **o: fixture("gemma3", **o),
    "gemma4_e": lambda **o: fixture("gemma4_e", media_beginnings(sounds=True), **o),
    "gemma4_dense": lambda **o: fixture("gemma4_dense", media_beginnings(sounds=False), **o),
    "gemma4_moe": lambda **o: fixture("gemma4_moe", media_beginnings(sounds=False), **o),
}


class Machine(RuleBasedStateMachine):
    subject: ClassVar[Subject]

    @initialize(window=st.sampled_from([7, 64, 256]))
    def start(self, window: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.engine = self.subject.engine(Path(self.folder.name))
        self.got = Collector()
        self.jobs: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.numbers = itertools.count()
        self.cut(window)

    @rule(
        beginning=st.integers(0, 3),
        length=st.integers(1, 200),
        tail=st.lists(st.integers(3, 52), max_size=20),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 3),
        top_k=st.sampled_from([0, 7]),
        max_tokens=st.sampled_from([1, 5, 20, 90]),
        priority=st.integers(-1, 1),
        n=st.integers(1, 2),
        cached=st.booleans(),
        grammar=st.sampled_from([0, 0, 1, 2, 3]),
    )
    def submit(
        self,
        beginning: int,
        length: int,
        tail: list[int],
        temperature: float,
        seed: int,
        top_k: int,
        max_tokens: int,
        priority: int,
        n: int,
        cached: bool,
        grammar: int,
    ) -> None:
        for choice in range(n):
            sampling = SamplingParams(
                temperature=temperature,
                seed=seed + choice,
                top_k=top_k,
                max_tokens=max_tokens,
                top_logprobs=2,
            )
            start = self.subject.beginnings[beginning].cut(length)
            beginning_and_tail = Beginning((*start.ids, *tail), start.content)
            self.send(beginning_and_tail, sampling, priority, b"" if cached else None, grammar)

    @rule(which=st.integers(0, 10), more=st.lists(st.integers(3, 52), min_size=1, max_size=9))
    def next_turn(self, which: int, more: list[int]) -> None:
        """A request that goes on where a finished one ended: a prompt cache has most of it."""
        done = [id for id in self.jobs if self.got.tokens(id) and id not in self.cancelled]
        if done:
            job = self.jobs[done[which % len(done)]]
            prompt = (*job.prompt, *self.got.tokens(job.id), *more)
            if len(prompt) < 400:
                self.send(Beginning(prompt, job.content), job.sampling, 0, b"")

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        if self.jobs:
            id = list(self.jobs)[which % len(self.jobs)]
            self.cancelled.add(id)
            self.engine.cancel(id)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        self.engine.step(count)

    @rule(which=st.integers(0, 5))
    def pause(self, which: int) -> None:
        def work(rows: Residents) -> None:
            running = [row for row in rows.running.values() if not row.suspect]
            if running:
                rows._pause(running[which % len(running)])  # pyright: ignore[reportPrivateUsage]

        self.engine.between_steps(work)

    @rule(nbytes=st.sampled_from([1, 100_000, 1 << 40]))
    def evict(self, nbytes: int) -> None:
        """What is evicted comes back from its files, as far as they are written by then."""

        def work(rows: Residents) -> None:
            rows.admission.cache.shrink(nbytes)

        self.engine.between_steps(work)

    @rule(window=st.sampled_from([1, 7, 33, 64, 256]))
    def cut(self, window: int) -> None:
        def work(rows: Residents) -> None:
            rows.pace = FixedPace(window)  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]

        self.engine.between_steps(work)

    @invariant()
    def everything_known_is_right(self) -> None:
        for id, job in self.jobs.items():
            tokens, logprobs = self.subject.reference(job)
            mine = self.got.tokens(id)
            assert mine == tokens[: len(mine)]
            if self.subject.exact:
                assert self.got.logprobs(id) == logprobs[: len(mine)]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            self.engine.finish()
            self.everything_known_is_right()
            for id, job in self.jobs.items():
                reason = self.got.wait(id, 5).reason
                assert reason in ENDED or (reason == "cancelled" and id in self.cancelled)
                if reason in ENDED:
                    assert self.got.tokens(id) == self.subject.reference(job)[0]
            stats = self.engine.stats()
            assert (stats.running, stats.waiting, stats.kv_bytes) == (0, 0, 0)
            assert stats.failed_steps == 0
        finally:
            self.engine.close()
            self.folder.cleanup()

    def send(
        self,
        start: Beginning,
        sampling: SamplingParams,
        priority: int,
        key: bytes | None,
        grammar: int = 0,
    ) -> None:
        id = f"j{next(self.numbers)}"
        self.jobs[id] = Request(
            id=id,
            prompt=start.ids,
            content=start.content,
            sampling=sampling,
            priority=priority,
            cache_key=key,
            grammar=grammars(self.subject.vocab)[grammar],
        )
        self.engine.submit(self.jobs[id], self.got)


def run_machine(of: Subject, examples: int = 15) -> None:
    class OfSubject(Machine):
        subject = of

    try:
        run_state_machine_as_test(
            OfSubject,
            settings=settings(
                max_examples=examples,
                stateful_step_count=25,
                deadline=None,
                phases=[HypothesisPhase.generate],  # to shrink a schedule takes minutes
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
    finally:
        of.close()


def busy_hour(subject: Subject) -> None:
    """A fixed schedule with everything in it: ragged rows, cancels, pauses, cache hits, windows of odd sizes."""
    engine, got = subject.engine(), Collector()
    jobs: list[Request] = []

    def send(start: Beginning, tail: list[int], seed: int, max_tokens: int, grammar: int = 0) -> None:
        sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=max_tokens, top_logprobs=1)
        prompt = (*start.ids, *tail)
        jobs.append(
            Request(
                id=f"b{len(jobs)}",
                prompt=prompt,
                content=start.content,
                sampling=sampling,
                grammar=grammars(subject.vocab)[grammar],
            )
        )
        engine.submit(jobs[-1], got)

    def fix_pace(rows: Residents) -> None:  # else the clock decides where windows end, and so what is cached
        rows.pace = FixedPace(64)  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]

    def pause(rows: Residents) -> None:
        rows._pause(next(iter(rows.running.values())))  # pyright: ignore[reportPrivateUsage]

    try:
        engine.between_steps(fix_pace)
        for number, beginning in enumerate(subject.beginnings):
            send(beginning, [5 + number], number, 40 + 30 * number)
            engine.step(4)
        engine.cancel(jobs[0].id)
        engine.step(3)
        engine.between_steps(pause)
        engine.step(3)
        for number, beginning in enumerate(subject.beginnings):
            send(beginning.cut(150), [9, 9, 9 + number], 7 + number, 70, number)
            engine.step(3)
            engine.between_steps(lambda rows: state_is_that_of_windows(subject, rows))
        engine.finish()
        for job in jobs:
            finished = got.wait(job.id, 5)
            tokens, logprobs = subject.reference(job)
            mine = got.tokens(job.id)
            assert finished.reason in ENDED or job is jobs[0], finished
            assert mine == tokens[: len(mine)]
            if subject.exact:
                assert got.logprobs(job.id) == logprobs[: len(mine)]
        if subject.speculates:
            assert engine.stats().drafted_tokens > 0, "the schedule must draft"
        hits = [e.cached_tokens for job in jobs for e in got.events[job.id] if isinstance(e, Started)]
        assert any(hits), "the schedule must hit the prompt cache"
    finally:
        engine.close()


def state_is_that_of_windows(subject: Subject, rows: Residents) -> None:
    """What the batch remembers is what its tokens give in one window: bit by bit where the kernels are exact."""
    state, graph = rows.batch.state, subject.graph
    for number, row in enumerate(rows.batch.rows):
        if row.request.content:
            continue
        assert state is not None and state.lengths[number] == row.computed == row.known - 1
        fresh = graph.make_state(1)
        ids = mx.array([row.tokens(0, row.computed)], mx.int32)
        mx.eval(forward(graph, [PhaseGroup(Phase.WINDOW, ids, fresh)], row_invariant=subject.exact))
        pairs = [(state.carried(i)[number], fresh.carried(i)[0]) for i in range(len(state.layout.recurrent))]
        for layer in range(len(state.layout.places)):
            first, *held = state.contents(layer, number)
            first_fresh, *expected = fresh.contents(layer, 0)
            start = max(first, first_fresh)
            pairs += [
                (a[:, start - first :], b[:, start - first_fresh :])
                for a, b in zip(held, expected, strict=True)
            ]
        for have, want in pairs:
            assert have.size and mx.allclose(have, want, rtol=0, atol=0 if subject.exact else 1e-4).item()


def rejected_drafts(subject: Subject) -> None:
    """Rows take back different counts of tokens and go on as if these had never been."""
    graph = subject.build()
    ids = mx.array([[(3 * r + 5 * i) % 40 + 3 for i in range(90)] for r in range(3)])

    def run(state: RowState, tokens: mx.array, phase: Phase) -> mx.array:
        return forward(graph, [PhaseGroup(phase, tokens, state)], row_invariant=subject.exact)[0]

    state = graph.make_state(3)
    mx.eval(run(state, ids[:, :80], Phase.WINDOW), run(state, ids[:, 80:84], Phase.VERIFY))
    rejected = [0, 3, 1]
    state.trim(rejected)
    got = run(state, ids[:, 85:86], Phase.DECODE)
    for row, count in enumerate(rejected):
        alone = mx.concatenate([ids[row : row + 1, : 84 - count], ids[row : row + 1, 85:86]], axis=1)
        expected = run(graph.make_state(1), alone, Phase.WINDOW)[0, -1]
        assert mx.allclose(got[row, -1], expected, atol=0 if subject.exact else 1e-4).item()
