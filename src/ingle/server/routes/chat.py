"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from ingle.server.answers import collect, stream
from ingle.server.dialects import openai_chat as dialect
from ingle.server.sse import until_disconnect
from ingle.server.state import client_of, event_stream, request_id_of, state_of
from ingle.service.chat import start_chat


async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    options = replace(dialect.options(wanted, model, state.config), cache_key=client_of(request))
    # Submitted before any header is sent: a refusal is a status, not an event in a stream.
    generation = await until_disconnect(
        request.receive,
        start_chat(model, dialect.turn(wanted), options, state.media, request_id_of(request)),
    )
    if not wanted.stream:
        done = await until_disconnect(request.receive, collect(request, generation))
        choices = [dialect.choice(i, c, logprobs=wanted.logprobs) for i, c in enumerate(done)]
        body = dialect.completion(model.name, choices, generation.usage)
        return Response(body, media_type="application/json")
    with_usage = wanted.stream_options is not None and wanted.stream_options.include_usage
    render = dialect.ChunkRenderer(model.name, generation, logprobs=wanted.logprobs, with_usage=with_usage)
    return event_stream(request, stream(request, generation, render))
