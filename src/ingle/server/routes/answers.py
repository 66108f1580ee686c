"""Carry a generation over HTTP: in one piece or as a stream, with deadline and clean ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from ingle.server import sse
from ingle.server.errors import answer_for, error_body
from ingle.server.state import ServerState
from ingle.service.choice_text import TokenText
from ingle.service.generation import ChoiceFinished, Generation, TextDelta, TextEvent

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Collected:
    """One finished choice."""

    text: list[str] = field(default_factory=list[str])
    tokens: list[TokenText] = field(default_factory=list[TokenText])
    reason: str = ""


async def collect(state: ServerState, generation: Generation, choices: int) -> list[Collected]:
    """All choices, complete.

    Raises:
        EngineError, EngineStopped, TimeoutError: nothing of the answer is kept.
    """
    out = [Collected() for _ in range(choices)]
    async with _watched(state, generation) as events:
        async for event in events:
            choice = out[event.index]
            if isinstance(event, TextDelta):
                choice.text.append(event.text)
                choice.tokens += event.tokens
            else:
                choice.reason = event.reason
    return out


async def stream(
    state: ServerState,
    generation: Generation,
    *,
    first: list[bytes],
    delta: Callable[[TextDelta], bytes],
    finish: Callable[[ChoiceFinished], bytes],
    last: Callable[[], list[bytes]],
) -> AsyncIterator[bytes]:
    """The bytes of a stream. An error after the first byte becomes an `error` event that ends it."""
    try:
        async with _watched(state, generation) as events:
            for chunk in first:
                yield chunk
            async for event in events:
                yield delta(event) if isinstance(event, TextDelta) else finish(event)
            for chunk in last():
                yield chunk
        yield sse.DONE
    except Exception as error:
        if answer_for(error).status >= 500:
            _log.warning("a stream ended early: %s", error)
        yield b"data: " + error_body(error) + b"\n\n"


@asynccontextmanager
async def _watched(state: ServerState, generation: Generation) -> AsyncGenerator[AsyncGenerator[TextEvent]]:
    """The generation's events, registered for shutdown, under the deadline, measured."""
    started = time.monotonic()
    limit, own = state.config.request_timeout_s, generation.timeout_s
    late = TimeoutError(f"the request took longer than this server's {limit:g} s")
    if own is not None and own < limit:
        limit, late = own, TimeoutError(f"the request took longer than its timeout_s, {own:g} s")
    # One timer for the request: a timeout around each token would cost more than the token's text.
    timer = asyncio.get_running_loop().call_later(limit, generation.fail, late)
    state.begin(generation)

    async def timed() -> AsyncGenerator[TextEvent]:
        last: dict[int, float] = {}  # when each choice had its last text
        async with aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    now = time.monotonic()
                    if event.index in last:
                        state.metrics.inter_token.observe(now - last[event.index])
                    elif not last:
                        state.metrics.first_token.observe(now - started)
                    last[event.index] = now
                yield event

    try:
        async with aclosing(timed()) as events:
            yield events
    finally:
        timer.cancel()
        generation.abandon()
        state.end(generation)
        state.metrics.duration.observe(time.monotonic() - started)
