"""POST /tokenize: the ids of a prompt or of a chat, media included, without running the model."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle.errors import InvalidRequest
from ingle.server.fields import decode
from ingle.server.sse import until_disconnect
from ingle.server.state import json_response, request_id_of, state_of
from ingle.service.chat import ChatTurn, encode_messages
from ingle.service.completions import encode_prompts
from ingle.service.generation import Prompt


class TokenizeRequest(msgspec.Struct, kw_only=True):
    model: str
    prompt: str | None = None
    messages: Any = None


async def tokenize(request: Request) -> Response:
    state = state_of(request)
    state.refuse_if_draining()
    wanted = decode(await request.body(), TokenizeRequest, {}, state.count_unknown)
    model = state.model(wanted.model)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")

    async def encode() -> Prompt:
        if wanted.prompt is not None:
            return (await encode_prompts(model, [wanted.prompt]))[0]
        return await encode_messages(
            model, ChatTurn(messages=wanted.messages), state.media, request_id_of(request)
        )

    prompt = await until_disconnect(request.receive, encode())
    body = {
        "count": len(prompt.ids),
        "max_model_len": model.engine.info.context_length,
        "tokens": prompt.ids,
    }
    return json_response(body)
