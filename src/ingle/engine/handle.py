"""The engine as the edge sees it: submit, cancel, observe. Imports no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ingle.contracts.request import Request, Subscriber


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded model can do. Constant for the life of an engine."""

    vocab_size: int
    context_length: int  # tokens, prompt and output together
    backend: str  # for people: "cpu (native avx512)", "metal", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters and gauges at one moment; counters only grow."""

    waiting: int  # requests accepted and not yet given a row
    running: int  # rows in prefill or decode
    steps: int
    prompt_tokens: int  # computed prompt tokens
    generated_tokens: int
    finished: dict[str, int]  # by finish reason
    step_seconds: float  # time spent in forward and sampling, all steps
    kv_bytes: int
    alive: bool  # the engine thread runs
    last_step_age_s: float  # seconds since the engine thread last showed life


class EngineHandle(Protocol):
    """Thread-safe: any method may be called from any thread."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, request: Request, subscriber: Subscriber) -> None:
        """Queue a request. Its events reach `subscriber`, ending with exactly one `Finished`.

        Raises:
            InvalidRequest: the request does not fit the model (`ContextOverflow` for length).
            QueueFull: too many requests wait.
            EngineStopped: the engine is shutting down or dead.
        """
        ...

    def cancel(self, request_id: str, detail: str = "cancelled") -> None:
        """End a request at the next step border. Unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats: ...
