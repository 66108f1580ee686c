"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from ingle.server.answers import collect, stream
from ingle.server.dialects import anthropic as dialect
from ingle.server.sse import until_disconnect
from ingle.server.state import client_of, event_stream, json_response, request_id_of, state_of
from ingle.service.chat import count_tokens, start_chat


async def messages(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    options = replace(dialect.options(wanted, model, state.config), cache_key=client_of(request))
    generation = await until_disconnect(
        request.receive,
        start_chat(model, dialect.turn(wanted, model), options, state.media, request_id_of(request)),
    )
    if not wanted.stream:
        (done,) = await until_disconnect(request.receive, collect(request, generation))
        body = dialect.message(model.name, done, generation.usage)
        return Response(body, media_type="application/json")
    return event_stream(request, stream(request, generation, dialect.EventRenderer(model.name, generation)))


async def count(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse_count(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    tokens = await until_disconnect(request.receive, count_tokens(model, dialect.turn(wanted, model)))
    return json_response({"input_tokens": tokens})
