"""GET /openapi.json: what the routes take, from the very types that read it."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle import __version__
from ingle.server.dialects.anthropic import CountRequest, MessagesRequest
from ingle.server.dialects.ollama import OllamaRequest
from ingle.server.dialects.openai_chat import ChatRequest
from ingle.server.dialects.openai_completions import CompletionRequest
from ingle.server.dialects.openai_embeddings import EmbeddingsRequest
from ingle.server.dialects.responses import ResponsesRequest
from ingle.server.routes.info import ModelRequest
from ingle.server.routes.tokenize import DetokenizeRequest, TokenizeRequest

_POSTS: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
    ("/v1/chat/completions", ChatRequest, "OpenAI Chat Completions"),
    ("/v1/completions", CompletionRequest, "OpenAI Completions"),
    ("/v1/responses", ResponsesRequest, "OpenAI Responses"),
    ("/v1/embeddings", EmbeddingsRequest, "OpenAI Embeddings"),
    ("/v1/messages", MessagesRequest, "Anthropic Messages"),
    ("/v1/messages/count_tokens", CountRequest, "Anthropic: tokens of a prompt"),
    ("/v1/models/load", ModelRequest, "Load a model"),
    ("/v1/models/unload", ModelRequest, "Unload a model"),
    ("/api/chat", OllamaRequest, "Ollama's chat"),
    ("/tokenize", TokenizeRequest, "Ids of a prompt or a chat"),
    ("/detokenize", DetokenizeRequest, "Text of ids"),
)
_GETS = (
    ("/health", "200 while every engine lives, else 503"),
    ("/v1/models", "Models that are served"),
    ("/v1/models/{name}", "One of them"),
    ("/v1/engine", "What each engine does at this moment"),
    ("/v1/responses/{id}", "A kept response"),
    ("/v1/responses/{id}/input_items", "What it was made of"),
    ("/api/tags", "Models, for clients of Ollama"),
    ("/api/version", "Ingle's version"),
)


@cache
def document() -> bytes:
    """An OpenAPI 3.1 document as JSON."""
    schemas, components = msgspec.json.schema_components(
        [struct for _, struct, _ in _POSTS], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for (path, _, about), schema in zip(_POSTS, schemas, strict=True):
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"summary": about, "requestBody": body, "responses": _responses()}}
    for path, about in _GETS:
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
        paths[path] = {"get": {"summary": about, "parameters": parameters, "responses": _responses()}}
    deleted = {**paths["/v1/responses/{id}"]["get"], "summary": "Forget a kept response"}
    paths["/v1/responses/{id}"]["delete"] = deleted
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Ingle", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _responses() -> dict[str, Any]:
    """Bodies have the shape of the dialect, in errors too; streams are events or lines."""
    anything = {"schema": {"type": "object"}}
    streams = {"text/event-stream": {"schema": {"type": "string"}}, "application/x-ndjson": {}}
    return {
        "200": {"description": "The answer", "content": {"application/json": anything, **streams}},
        "default": {"description": "A problem, named", "content": {"application/json": anything}},
    }


async def openapi(request: Request) -> Response:
    return Response(document(), media_type="application/json")
