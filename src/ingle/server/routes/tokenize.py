"""POST /tokenize and /detokenize: ids of a prompt or a chat, media included, and their text back."""

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
    add_generation_prompt: bool = True


async def tokenize(request: Request) -> Response:
    state = state_of(request)
    wanted = decode(await state.body(request), TokenizeRequest, {}, state.count_unknown)
    model = await state.model(request, wanted.model)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")

    async def encode() -> Prompt:
        if wanted.prompt is not None:
            return (await encode_prompts(model, [wanted.prompt]))[0]
        return await encode_messages(
            model,
            ChatTurn(messages=wanted.messages, add_generation_prompt=wanted.add_generation_prompt),
            state.media,
            request_id_of(request),
        )

    prompt = await until_disconnect(request.receive, encode())
    body = {
        "count": len(prompt.ids),
        "max_model_len": model.engine.info.context_length,
        "tokens": prompt.ids,
    }
    return json_response(body)


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str
    tokens: list[int]
    skip_special_tokens: bool = False


async def detokenize(request: Request) -> Response:
    state = state_of(request)
    wanted = decode(await state.body(request), DetokenizeRequest, {}, state.count_unknown)
    model = await state.model(request, wanted.model)
    size = model.engine.info.vocab_size
    bad = next((token for token in wanted.tokens if not 0 <= token < size), None)
    if bad is not None:
        raise InvalidRequest(f"tokens holds {bad}, the vocabulary has ids 0 to {size - 1}", param="tokens")
    text = model.tokenizer.decode(wanted.tokens, skip_special=wanted.skip_special_tokens)
    return json_response({"prompt": text})
