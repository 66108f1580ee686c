"""POST /v1/embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ingle.server.dialects import openai_embeddings as dialect
from ingle.server.sse import until_disconnect
from ingle.server.state import state_of
from ingle.service.embeddings import embed


async def embeddings(request: Request) -> Response:
    state = state_of(request)
    state.refuse_if_draining()
    wanted = dialect.parse(await request.body(), state.count_unknown)
    model = state.model(wanted.model)
    texts = dialect.inputs(wanted)
    work = embed(model, texts, dimensions=wanted.dimensions, priority=wanted.priority)
    done = await until_disconnect(request.receive, work)
    body = dialect.answer(model.name, done, wanted.encoding_format)
    return Response(body, media_type="application/json")
