"""POST /v1/embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ingle.server.dialects import openai_embeddings as dialect
from ingle.server.sse import until_disconnect
from ingle.server.state import client_of, state_of
from ingle.service.embeddings import embed


async def embeddings(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    texts = dialect.inputs(wanted)
    work = embed(model, texts, dimensions=wanted.dimensions, priority=wanted.priority)
    done = await until_disconnect(request.receive, work)
    state.clients.charge(client_of(request), done.tokens)
    body = dialect.answer(model.name, done, wanted.encoding_format)
    return Response(body, media_type="application/json")
