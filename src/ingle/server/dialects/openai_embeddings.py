"""OpenAI Embeddings: parse the request, render the answer."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from ingle.errors import InvalidRequest
from ingle.server.fields import Harmless, anything, decode, shown
from ingle.service.embeddings import Embeddings

MAX_INPUTS = 2048  # the API's own limit


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    model: str
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0


UNSUPPORTED: Mapping[str, Harmless] = {"user": anything}


def parse(body: bytes, count_unknown: Callable[[str], None]) -> EmbeddingsRequest:
    return decode(body, EmbeddingsRequest, UNSUPPORTED, count_unknown)


def inputs(request: EmbeddingsRequest) -> list[str | list[int]]:
    """A string, token ids, or a list of either.

    Raises:
        InvalidRequest: anything else, nothing, or too many.
    """
    given = request.input
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise InvalidRequest(
            f"input must be a string, token ids or a non-empty list of those, got {shown(given)}",
            param="input",
        )
    items = cast("list[Any]", given)
    if _ids(items):
        return [cast("list[int]", items)]
    if len(items) > MAX_INPUTS:
        raise InvalidRequest(f"input holds {len(items)} texts, the limit is {MAX_INPUTS}", param="input")
    for index, item in enumerate(items):
        if not isinstance(item, str) and not (isinstance(item, list) and _ids(cast("list[Any]", item))):
            raise InvalidRequest(
                f"input[{index}] must be a string or token ids, got {shown(item)}", param="input"
            )
    return items


def _ids(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(i, int) and not isinstance(i, bool) for i in items)


def answer(model: str, done: Embeddings, encoding: str) -> bytes:
    """Vectors as numbers, or as base64 of little-endian float32."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(v.astype("<f4").tobytes()).decode()
            if encoding == "base64"
            else v.tolist(),
        }
        for index, v in enumerate(done.vectors)
    ]
    usage = {"prompt_tokens": done.tokens, "total_tokens": done.tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})
