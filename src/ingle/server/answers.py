"""Carry a generation over HTTP: in one piece or as a stream, with deadline and clean ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request

from ingle.server.errors import answer_for
from ingle.server.state import client_of, state_of
from ingle.service.choice_text import TokenText
from ingle.service.generation import (
    ChoiceFinished,
    Generation,
    ReasoningDelta,
    TextDelta,
    TextEvent,
    ToolCalled,
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Block:
    """Text or reasoning that was written in one piece."""

    reasons: bool
    texts: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class Collected:
    """One finished choice, in the order in which it was written."""

    blocks: list[Block | ToolCalled] = field(default_factory=list["Block | ToolCalled"])
    tokens: list[TokenText] = field(default_factory=list[TokenText])
    reason: str = ""
    stop: str | None = None  # the stop string that matched

    def add(self, event: TextEvent) -> None:
        if isinstance(event, ChoiceFinished):
            self.reason, self.stop = event.reason, event.stop
        elif isinstance(event, ToolCalled):
            self.blocks.append(event)
        else:
            reasons = isinstance(event, ReasoningDelta)
            last = self.blocks[-1] if self.blocks else None
            if not isinstance(last, Block) or last.reasons != reasons:
                last = Block(reasons)
                self.blocks.append(last)
            last.texts.append(event.text)
            if isinstance(event, TextDelta):
                self.tokens += event.tokens

    @property
    def text(self) -> str:
        return "".join(b.text for b in self.blocks if isinstance(b, Block) and not b.reasons)

    @property
    def reasoning(self) -> str:
        return "".join(b.text for b in self.blocks if isinstance(b, Block) and b.reasons)

    @property
    def calls(self) -> list[ToolCalled]:
        return [b for b in self.blocks if isinstance(b, ToolCalled)]


async def collect(request: Request, generation: Generation) -> list[Collected]:
    """All choices, complete.

    Raises:
        EngineError, EngineStopped, TimeoutError: nothing of the answer is kept.
    """
    out = [Collected() for _ in range(generation.choices)]
    async with _watched(request, generation) as events:
        async for event in events:
            out[event.index].add(event)
    return out


class StreamRenderer(Protocol):
    """A dialect's bytes of a stream."""

    def first(self) -> bytes: ...

    def event(self, event: TextEvent) -> bytes: ...

    def last(self) -> bytes: ...

    def failed(self, error: Exception) -> bytes:
        """The end of a stream that an error cuts short."""
        ...


async def follow(request: Request, generation: Generation, render: StreamRenderer) -> None:
    """`render` sees all events; what it makes of them is not sent.

    Raises:
        EngineError, EngineStopped, TimeoutError: there is no answer.
    """
    async with _watched(request, generation) as events:
        async for event in events:
            render.event(event)


async def stream(
    request: Request,
    generation: Generation,
    render: StreamRenderer,
    before_last: Callable[[], Awaitable[None]] | None = None,
) -> AsyncGenerator[bytes]:
    """The bytes of a stream. An error after the first byte becomes an event that ends it.

    `before_last` is awaited when the answer is complete and the client does not know it yet.
    """
    try:
        async with _watched(request, generation) as events:
            yield render.first()
            async for event in events:
                yield render.event(event)
        if before_last is not None:
            await before_last()
        yield render.last()
    except Exception as error:
        if answer_for(error).status >= 500:
            _log.warning("a stream ended early: %s", error)
        yield render.failed(error)


@asynccontextmanager
async def _watched(request: Request, generation: Generation) -> AsyncGenerator[AsyncGenerator[TextEvent]]:
    """The generation's events, registered for shutdown, under the deadline, measured."""
    state = state_of(request)
    started = time.monotonic()
    limit, own = state.config.request_timeout_s, generation.options.timeout_s
    late = TimeoutError(f"the request took longer than this server's {limit:g} s")
    if own is not None and own < limit:
        limit, late = own, TimeoutError(f"the request took longer than its timeout_s, {own:g} s")
    # One timer for the request: a timeout around each token would cost more than the token's text.
    timer = asyncio.get_running_loop().call_later(limit, generation.fail, late)
    state.begin(generation)
    reasons: list[str] = []

    async def timed() -> AsyncGenerator[TextEvent]:
        last: dict[int, float] = {}  # when each choice had its last text
        async with aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, ChoiceFinished):
                    reasons.append(event.reason)
                else:
                    now = time.monotonic()
                    if event.index in last:
                        state.metrics.inter_token.observe(now - last[event.index])
                    elif not last:
                        state.metrics.first_token.observe(now - started)
                    last[event.index] = now
                yield event

    try:
        with state.tracer.span(generation, request.headers) as span:
            async with aclosing(timed()) as events:
                yield events
            span.finish(reasons)
    finally:
        timer.cancel()
        generation.abandon()
        state.end(generation)
        usage = generation.usage
        state.clients.charge(client_of(request), usage.prompt_tokens + usage.completion_tokens)
        request.scope["ingle.facts"].update(
            prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, finished=reasons
        )
        state.metrics.duration.observe(time.monotonic() - started)
