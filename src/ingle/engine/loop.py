"""The engine: one thread that plans, runs and commits steps, and the doors into it.

Only the engine thread touches rows, caches and MLX arrays. Other threads leave work in an inbox
under one lock and read frozen numbers. A step that fails takes no neighbour with it: its rows are
computed again one at a time, and a row that fails alone ends with an error.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ingle.cache.persistence import BlockFiles
from ingle.config import EngineConfig
from ingle.contracts.engine_stats import EngineStats
from ingle.contracts.graph import ModelGraph
from ingle.contracts.request import (
    Embedded,
    EngineEvent,
    Finished,
    FinishReason,
    Request,
    Started,
    Subscriber,
    TokensCommitted,
)
from ingle.decoding.sampler import Sampled
from ingle.engine.admission import Admission
from ingle.engine.counters import Counters, engine_stats
from ingle.engine.features import FeatureCache
from ingle.engine.handle import EngineInfo
from ingle.engine.memory_plan import MemoryPlan
from ingle.engine.pace import Pace
from ingle.engine.residents import Residents
from ingle.engine.rows import Row, whole_blocks
from ingle.engine.runner import GrammarCounters, Runner, StepResult
from ingle.engine.scheduler import Plan
from ingle.engine.speculation import Speculation
from ingle.errors import EngineStopped, InvalidRequest, QueueFull
from ingle.speculative.source import DraftSource

_log = logging.getLogger(__name__)

_CLEAR_STEPS = 256  # MLX keeps freed buffers; give them back this often


@dataclass(slots=True)
class _Inbox:
    """What other threads left for the engine thread. Guarded by the engine's lock."""

    submitted: deque[Row] = field(default_factory=deque[Row])
    cancelled: dict[str, str] = field(default_factory=dict[str, str])  # id -> detail
    closing: str | None = None


class Engine:
    """See `engine.handle.EngineHandle`.

    `build` makes the graph on the engine thread (arrays belong to the thread that made them), and `drafts`
    what proposes drafts for it.

    Raises:
        Whatever `build` raises, from the constructor; no thread is left behind.
    """

    def __init__(
        self,
        build: Callable[[], ModelGraph],
        info: EngineInfo,
        config: EngineConfig,
        *,
        row_invariant: bool,
        drafts: Callable[[ModelGraph], Sequence[DraftSource]] | None = None,
    ) -> None:
        self._info, self._config, self._drafts = info, config, drafts
        self._row_invariant = row_invariant
        self._lock = threading.Condition()
        self._inbox = _Inbox()
        self._live: set[str] = set()  # accepted and not finished; guarded by the lock
        self._counters = Counters()
        self._arrivals = itertools.count()
        self._files: BlockFiles | None = None
        self._rows: Residents  # these are made by the engine thread, with the graph
        self._memory: MemoryPlan
        self._features: FeatureCache
        self.speculation: Speculation | None = None
        self._whole_blocks: bool
        self._grammars: GrammarCounters
        self._events: dict[Subscriber, list[tuple[str, EngineEvent]]] = {}
        ready: _Ready = _Ready()
        self._thread = threading.Thread(
            target=self._main, args=(build, ready), name="ingle-engine", daemon=True
        )
        self._thread.start()
        ready.event.wait()
        if ready.error is not None:
            self._thread.join()
            raise ready.error

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, request: Request, subscriber: Subscriber) -> None:
        request.check(vocab_size=self._info.vocab_size, context_length=self._info.context_length)
        self._memory.check(request, self._info.fitting_tokens)
        limit = self._config.max_rows + self._config.max_waiting
        with self._lock:
            if self._inbox.closing is not None or not self._thread.is_alive():
                raise EngineStopped(self._inbox.closing or "the engine thread is dead")
            if request.id in self._live:
                raise InvalidRequest(f"request id {request.id!r} is in use", param="id")
            if len(self._live) >= limit:
                raise QueueFull(
                    f"{len(self._live)} requests run or wait, the limit is {limit}; try again later"
                )
            self._live.add(request.id)
            self._inbox.submitted.append(Row(request, subscriber, arrival=next(self._arrivals)))
            self._lock.notify()

    def cancel(self, request_id: str, detail: str = "cancelled") -> None:
        with self._lock:
            if request_id in self._live:
                self._inbox.cancelled.setdefault(request_id, detail)
                self._lock.notify()

    def stats(self) -> EngineStats:
        with self._lock:
            live = len(self._live)
        return engine_stats(
            self._counters,
            self._rows,
            self._memory,
            self._features.counters,
            self.speculation,
            self._grammars,
            live=live,
            alive=self._thread.is_alive(),
        )

    def close(self, detail: str = "the engine is shutting down") -> None:
        """End every request with "cancelled" and stop the thread. Waits for the step in progress."""
        with self._lock:
            if self._inbox.closing is None:
                self._inbox.closing = detail
            self._lock.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # Engine thread from here on.

    def _main(self, build: Callable[[], ModelGraph], ready: _Ready) -> None:
        try:
            takes_media = self._info.takes_media
            graph, sources, self._memory = MemoryPlan.build(
                build, self._drafts, self._config, takes_media=takes_media
            )
            folder = self._config.prompt_cache_dir
            if folder is not None:
                limit = self._config.prompt_cache_disk_bytes
                self._files = BlockFiles(folder, limit, self._info.identity)
            memory = self._memory
            admission = Admission(memory.rows, memory.kv, memory.prompt_cache, self._files)
            pace = Pace(self._config.max_gap_ms / 1e3, self._config.window_tokens)
            self._rows = Residents(admission, pace, self._config.max_rows, sources)
            if sources:
                self.speculation = Speculation(sources, graph.layout)
            self._info = self._memory.limit(self._info)
            self._features = FeatureCache(graph.encode, memory.media)
            self._whole_blocks = bool(graph.whole_block)
            runner = Runner(graph, self._features, row_invariant=self._row_invariant)
            self._grammars = runner.grammars
        except BaseException as error:
            ready.error = error
            ready.event.set()
            return
        ready.event.set()
        detail, reason = "the engine thread died", "error"
        try:
            while self._receive():
                self._step(runner)
                self._flush()
            detail, reason = self._inbox.closing or "", "cancelled"
        except BaseException:
            _log.exception("the engine thread died")
            raise
        finally:
            self._end_all(reason, detail)

    def _receive(self) -> bool:
        """Take the inbox, waiting for work if there is none. False: time to stop."""
        with self._lock:
            while (
                not (self._inbox.submitted or self._inbox.cancelled or self._rows.any)
                and self._inbox.closing is None
            ):
                self._lock.wait()
            inbox, self._inbox = self._inbox, _Inbox(closing=self._inbox.closing)
        for row in inbox.submitted:
            if self._whole_blocks:
                row.blocks = whole_blocks(row.request.content)
            self._rows.waiting[row.id] = row
        leaving = [
            (row, detail)
            for id, detail in inbox.cancelled.items()
            if (row := self._rows.find(id)) is not None
        ]
        for row, detail in leaving:
            self._finish(row, "cancelled", detail)
        if leaving:
            self._rows.settle()
            self._flush()
            self._memory.note_peak()
        return inbox.closing is None

    def _step(self, runner: Runner) -> None:
        for row, failure in self._rows.admit(runner.make_state):
            if failure is not None:
                self._finish(row, "error", f"the row could not start: {failure}")
            elif not row.started:
                row.started = True
                self._emit(row, Started(row.computed))
        drafts: dict[str, tuple[int, ...]] = {}
        if self.speculation is not None and not self._rows.any_suspect:
            drafts = self.speculation.propose(self._rows.batch)
        chosen = self._rows.plan(drafts)
        self._counters.running = len(self._rows.running)
        if chosen.empty:
            return
        streams, tokens = bool(chosen.decode), chosen.window_tokens
        phase = "decode" if not tokens else "mixed" if streams else "prefill"
        started = self._counters.busy_since = time.monotonic()
        self._memory.expect(
            self._rows.kv_bytes_after(chosen),
            tokens=len(chosen.decode) + chosen.draft_tokens + tokens,
            rows=len(chosen.decode) + chosen.draft_tokens + len(chosen.windows),
        )
        try:
            keep_hidden = self.speculation is not None and self.speculation.wants_hidden(
                len(self._rows.batch.rows)
            )
            result = runner.run(chosen, self._rows.running, self._rows.batch, keep_hidden=keep_hidden)
            if self.speculation is not None and streams:
                self.speculation.learn(chosen, result.sampled, time.monotonic() - started)
            self._commit(result)
        except Exception as error:
            self._recover(chosen, error)
        seconds = time.monotonic() - started
        self._counters.busy_since = None
        self._counters.steps[phase] = self._counters.steps.get(phase, 0) + 1
        self._counters.step_seconds[phase] = self._counters.step_seconds.get(phase, 0.0) + seconds
        self._rows.pace.observe(streams=streams, tokens=tokens, seconds=seconds)
        if chosen.windows or self._counters.steps[phase] % _CLEAR_STEPS == 0:
            mx.clear_cache()
        if not self._rows.running:
            self._memory.note_peak()

    def _commit(self, result: StepResult) -> None:
        """Publish a step: progress, tokens, membership. Membership changes all at once or not at all."""
        joining: list[Row] = []
        members = set(self._rows.batch.rows)
        for id, count in result.computed.items():
            row = self._rows.running[id]
            row.computed += count
            if row not in members:
                prompt = len(row.request.prompt)
                self._counters.prompt_tokens += max(0, min(count, prompt - (row.computed - count)))
                self._rows.publish(row)
                if row.request.pooling is not None and row.pending == 0:
                    self._emit(row, Embedded(row.embedding))
                    self._finish(row, "stop")
        for id, message in result.refused.items():
            self._finish(self._rows.running[id], "error", message, refused=True)
        for id, sampled in result.sampled.items():
            row = self._rows.running[id]
            self._take(row, sampled)
            if id in self._rows.running and row not in members:
                joining.append(row)
        self._rows.settle(joining)
        self._counters.kv_bytes = self._rows.kv_bytes

    def _take(self, row: Row, sampled: Sequence[Sampled]) -> None:
        """The new tokens of one row: emit them, and finish the row if they end it."""
        params = row.request.sampling
        last = sampled[-1].token  # nothing is accepted behind what ends a row
        stops = last is None or last in params.stop_token_ids
        new = sampled[:-1] if stops else sampled
        row.suspect = row.suspect and last is None
        self._counters.generated_tokens += len(sampled) - (last is None)
        if new:
            tokens = tuple([s.token for s in new if s.token is not None])
            for count, token in enumerate(tokens, 1):
                row.push(token)
                if row.complete:  # what was accepted behind a grammar's end is not part of the answer
                    tokens = tokens[:count]
                    break
            logprobs = tuple([s.logprobs for s in new[: len(tokens)] if s.logprobs is not None])
            self._emit(row, TokensCommitted(tokens, logprobs or None, row.drafted, row.accepted))
        if last is None:
            self._finish(row, "error", "the model produced values that are not finite numbers")
        elif stops:
            self._finish(row, "stop", stop_token=last)
        elif row.complete:
            self._finish(row, "stop" if row.grammar is not None and row.grammar.complete else "length")

    def _recover(self, chosen: Plan, error: Exception) -> None:
        """After a failed step: its rows forget their KV and run again alone; a lone row has failed."""
        ids = [*chosen.decode, *(window.id for window in chosen.windows)]
        _log.warning("a step of %d rows failed: %s", len(ids), error, exc_info=error)
        message = f"{type(error).__name__}: {error}"
        error.with_traceback(None)  # its frames hold arrays
        self._counters.failed_steps += 1
        planned = self._rows.start_over(ids)
        if len(ids) == 1:
            for row in planned:
                self._finish(row, "error", f"the step failed: {message}")
        self._rows.settle()
        mx.clear_cache()

    def _finish(
        self,
        row: Row,
        reason: FinishReason,
        detail: str | None = None,
        *,
        stop_token: int | None = None,
        refused: bool = False,
    ) -> None:
        self._rows.leave(row, keep=reason != "error")
        self._counters.running = len(self._rows.running)
        self._counters.kv_bytes = self._rows.kv_bytes
        self._counters.finished[reason] = self._counters.finished.get(reason, 0) + 1
        with self._lock:
            self._live.discard(row.id)
        self._emit(row, Finished(reason, detail, stop_token, refused, row.drafted, row.accepted))

    def _emit(self, row: Row, event: EngineEvent) -> None:
        self._events.setdefault(row.subscriber, []).append((row.id, event))

    def _flush(self) -> None:
        """One call for each subscriber carries everything that this step has for it."""
        events, self._events = self._events, {}
        for subscriber, batch in events.items():
            try:
                subscriber.deliver(batch)
            except Exception:
                _log.exception("a subscriber failed; its requests are cancelled")
                for id, _ in batch:
                    self.cancel(id, "the subscriber failed")

    def _end_all(self, reason: FinishReason, detail: str) -> None:
        with self._lock:
            if self._inbox.closing is None:
                self._inbox.closing = detail
            rows = [*self._inbox.submitted, *self._rows.waiting.values(), *self._rows.running.values()]
            self._inbox.submitted.clear()
        for row in rows:
            self._finish(row, reason, detail)
        self._rows.batch.drop()
        self._features.clear()
        self._rows.admission.cache.shrink(self._rows.admission.cache.nbytes)
        if self._files is not None:
            self._files.close()
        self._flush()
        mx.clear_cache()


@dataclass(slots=True)
class _Ready:
    event: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
