"""What clients of Ollama ask for: /api/chat, /api/tags, /api/version."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingle import __version__
from ingle.server.answers import follow, stream
from ingle.server.dialects import ollama as dialect
from ingle.server.sse import EventStreamResponse, until_disconnect
from ingle.server.state import client_of, json_response, request_id_of, state_of
from ingle.service.chat import start_chat


async def chat(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model.removesuffix(":latest"))
    options = dialect.options(wanted, model, state.config, state.count_unknown)
    generation = await until_disconnect(
        request.receive,
        start_chat(
            model,
            dialect.turn(wanted),
            replace(options, cache_key=client_of(request)),
            state.media,
            request_id_of(request),
        ),
    )
    render = dialect.LineRenderer(wanted.model, generation)
    if not wanted.stream:
        await until_disconnect(request.receive, follow(request, generation, render))
        return Response(render.answer(), media_type="application/json")
    return EventStreamResponse(stream(request, generation, render), media_type="application/x-ndjson")


async def tags(request: Request) -> Response:
    listed: list[dict[str, Any]] = []
    for place in state_of(request).pool.places:
        engine = None if place.opened is None else place.opened.model.engine
        identity = place.name if engine is None else engine.info.identity or place.name
        listed.append(
            {
                "name": place.name,
                "model": place.name,
                "modified_at": datetime.fromtimestamp(place.created, UTC).isoformat(),
                "size": 0 if engine is None else engine.stats().weights_bytes,
                "digest": hashlib.sha256(identity.encode()).hexdigest(),
                "details": {"format": "", "family": "", "parameter_size": "", "quantization_level": ""},
            }
        )
    return json_response({"models": listed})


async def version(request: Request) -> Response:
    return json_response({"version": __version__})
