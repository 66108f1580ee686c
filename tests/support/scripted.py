"""An engine that says what it is told to, on its own thread: for what comes behind the engine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ingle.contracts.engine_stats import EngineStats
from ingle.contracts.request import Finished, Request, Started, Subscriber, TokenLogprobs, TokensCommitted
from ingle.contracts.text_assets import TextAssets
from ingle.engine.handle import EngineInfo
from ingle.service.models import TextModel
from ingle.text.tokenizer import Tokenizer
from ingle.weights.checkpoint import open_checkpoint

TINY = Path(__file__).parents[2] / "src" / "ingle" / "bundled" / "tiny-gemma4"
Reply = Callable[[str], str]  # from the prompt's text, control tokens included


class ScriptedEngine:
    """Implements `EngineHandle`."""

    def __init__(self, assets: TextAssets, reply: Reply, *, chunk: int = 1, delay_s: float = 0.0) -> None:
        self.tokenizer = Tokenizer.load(assets)
        self.info = EngineInfo(
            vocab_size=self.tokenizer.vocab_size, context_length=100_000, backend="scripted"
        )
        self.reply, self._chunk, self.delay_s = reply, chunk, delay_s
        self.prompts: list[str] = []
        self._work: queue.Queue[tuple[Request, Subscriber] | None] = queue.Queue()
        self._cancelled: set[str] = set()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def submit(self, request: Request, subscriber: Subscriber) -> None:
        request.check(vocab_size=self.info.vocab_size, context_length=self.info.context_length)
        self._work.put((request, subscriber))

    def cancel(self, request_id: str, detail: str = "cancelled") -> None:
        self._cancelled.add(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(
            waiting=0, running=0, steps={}, step_seconds={}, prompt_tokens=0, cached_tokens=0, queried_tokens=0,
            cached_bytes=0, generated_tokens=0, finished={}, delayed=0, paused=0, failed_steps=0, kv_bytes=0,
            prompt_cache_bytes=0, kv_limit_bytes=1, weights_bytes=0, predicted_bytes=0, peak_bytes=0,
            alive=self._thread.is_alive(), last_step_age_s=0.0,
        )  # fmt: skip

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (job := self._work.get()) is not None:
            self._answer(*job)

    def _answer(self, request: Request, subscriber: Subscriber) -> None:
        prompt = self.tokenizer.decode(request.prompt, skip_special=False)
        self.prompts.append(prompt)
        ids = self.tokenizer.encode(self.reply(prompt), special=True)
        ends = request.sampling.stop_token_ids
        ids = ids[: request.sampling.max_tokens]
        subscriber.deliver([(request.id, Started(0))])
        for start in range(0, len(ids), self._chunk):
            if request.id in self._cancelled:
                subscriber.deliver([(request.id, Finished("cancelled", "cancelled"))])
                return
            if self.delay_s:
                time.sleep(self.delay_s)
            piece = tuple(ids[start : start + self._chunk])
            logprobs = (
                None
                if request.sampling.top_logprobs is None
                else tuple(_logprobs(piece, request.sampling.top_logprobs))
            )
            subscriber.deliver([(request.id, TokensCommitted(piece, logprobs))])
        reason = "length" if len(ids) == request.sampling.max_tokens else "stop"
        subscriber.deliver(
            [(request.id, Finished(reason, stop_token=ends[0] if reason == "stop" and ends else None))]
        )


def _logprobs(piece: Sequence[int], top: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-0.5 - token / 1000, ((token, -0.5),)[:top]) for token in piece]


def scripted_model(
    reply: Reply, *, name: str = "scripted", chunk: int = 1, delay_s: float = 0.0
) -> TextModel:
    """With the tokenizer, the template and so the marks of Gemma 4."""
    text = open_checkpoint(TINY).text
    assert text is not None
    engine = ScriptedEngine(text, reply, chunk=chunk, delay_s=delay_s)
    return TextModel.open(name, text, engine)
