"""The engine as the edge sees it: submit, cancel, observe. Imports no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ingle.contracts.engine_stats import EngineStats
from ingle.contracts.request import Request, Subscriber


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded model can do. Constant for the life of an engine."""

    vocab_size: int
    context_length: int  # tokens, prompt and output together
    backend: str  # for people: "cpu (native avx512)", "metal", ...
    identity: str = ""  # of weights and arithmetic: KV is only shared between engines of one identity
    drafts: str = "no drafts"  # for people: what proposes them
    takes_media: bool = False  # the graph has encoders for the features that spans carry
    fitting_tokens: int | None = None  # of one sequence in all the memory for KV; None: more than the context


class EngineHandle(Protocol):
    """Thread-safe: any method may be called from any thread."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, request: Request, subscriber: Subscriber) -> None:
        """Queue a request. Its events reach `subscriber`, ending with exactly one `Finished`.

        Raises:
            InvalidRequest: the request does not fit the model (`ContextOverflow` for length) or the
                memory (`InsufficientMemory`).
            QueueFull: too many requests wait.
            EngineStopped: the engine is shutting down or dead.
        """
        ...

    def cancel(self, request_id: str, detail: str = "cancelled") -> None:
        """End a request at the next step border. Unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats: ...
