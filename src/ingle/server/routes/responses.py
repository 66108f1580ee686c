"""/v1/responses: make, read, delete, and what a response was made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingle.errors import NotFound
from ingle.server.answers import follow, stream
from ingle.server.dialects import responses as dialect
from ingle.server.dialects.responses_stream import ResponseWriter
from ingle.server.sse import until_disconnect
from ingle.server.state import ServerState, client_of, event_stream, json_response, request_id_of, state_of
from ingle.service.chat import start_chat


async def create(request: Request) -> Response:
    state, client = state_of(request), client_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    options = replace(dialect.options(wanted, model, state.config), cache_key=client)
    earlier: list[Any] = []
    if wanted.previous_response_id is not None:
        earlier = await _items(state, client, wanted.previous_response_id)
    items = [*earlier, *dialect.input_items(wanted)]
    turn = dialect.turn(wanted, items, len(earlier))
    generation = await until_disconnect(
        request.receive, start_chat(model, turn, options, state.media, request_id_of(request))
    )
    resource = dialect.Resource.of(wanted, model)
    writer = ResponseWriter(resource, generation, logprobs=dialect.wants_logprobs(wanted))

    async def keep() -> None:
        if wanted.store:
            body = writer.response()
            await asyncio.to_thread(state.responses.put, client, body, [*items, *body["output"]])

    if wanted.stream:
        return event_stream(request, stream(request, generation, writer, keep))
    await until_disconnect(request.receive, follow(request, generation, writer))
    await keep()
    return json_response(writer.response())


async def compact(request: Request) -> Response:
    raise NotFound("responses are not compacted here", code="not_found")


async def read(request: Request) -> Response:
    return json_response(await _kept(request, state_of(request).responses.response))


async def items(request: Request) -> Response:
    """What went into a response, and came out of it before."""
    kept = await _kept(request, state_of(request).responses.items)
    response = await _kept(request, state_of(request).responses.response)
    data = kept[: len(kept) - len(response["output"])]
    return json_response({"object": "list", "data": data, "has_more": False})


async def delete(request: Request) -> Response:
    id, state = request.path_params["id"], state_of(request)
    if not await asyncio.to_thread(state.responses.delete, client_of(request), id):
        raise _unknown(id)
    return json_response({"id": id, "object": "response", "deleted": True})


async def _kept(request: Request, look: Callable[[bytes, str], Any]) -> Any:
    id = request.path_params["id"]
    found = await asyncio.to_thread(look, client_of(request), id)
    if found is None:
        raise _unknown(id)
    return found


async def _items(state: ServerState, client: bytes, id: str) -> list[Any]:
    found = await asyncio.to_thread(state.responses.items, client, id)
    if found is None:
        raise _unknown(id, "previous_response_id")
    return found


def _unknown(id: str, param: str = "response_id") -> NotFound:
    return NotFound(f"response {id[:80]!r} is not kept here", param=param, code="response_not_found")
