"""What clients of Ollama ask for: /api/chat, /api/tags, /api/version."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

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
    state.refuse_if_draining()
    wanted = dialect.parse(await request.body(), state.count_unknown)
    model = state.model(wanted.model.removesuffix(":latest"))
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
        await until_disconnect(request.receive, follow(state, generation, render))
        return Response(render.answer(), media_type="application/json")
    return EventStreamResponse(stream(state, generation, render), media_type="application/x-ndjson")


async def tags(request: Request) -> Response:
    listed = [
        {
            "name": model.name,
            "model": model.name,
            "modified_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
            "size": model.engine.stats().weights_bytes,
            "digest": hashlib.sha256((model.engine.info.identity or model.name).encode()).hexdigest(),
            "details": {"format": "ingle", "family": "", "parameter_size": "", "quantization_level": ""},
        }
        for model in state_of(request).models.values()
    ]
    return json_response({"models": listed})


async def version(request: Request) -> Response:
    return json_response({"version": __version__})
