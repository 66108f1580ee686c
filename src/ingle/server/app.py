"""The ASGI application: routes, layers around them, and errors in the API's shape."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingle.config import MediaConfig, ServerConfig, is_loopback
from ingle.errors import IngleError
from ingle.server import openapi
from ingle.server.clients import Clients
from ingle.server.errors import on_error, on_http_exception
from ingle.server.metrics import Metrics
from ingle.server.middleware import ApiKeys, BodyLimit, OwnPages, Requests
from ingle.server.routes import (
    chat,
    completions,
    embeddings,
    info,
    messages,
    ollama,
    page,
    responses,
    tokenize,
)
from ingle.server.sse import ClientGone
from ingle.server.state import ServerState
from ingle.server.tracing import NoTracer, Tracer
from ingle.service.media import MediaInput
from ingle.service.model_pool import ModelPool


def create_app(
    pool: ModelPool,
    config: ServerConfig,
    media: MediaConfig | None = None,
    tracer: Tracer | None = None,
) -> Starlette:
    """An application that serves the pool's models. `media`: limits of what requests bring."""
    metrics, clients = Metrics(pool), Clients(config.api_keys)
    routes = [
        Route("/", page.page, methods=["GET"]),
        Route("/web/{file}", page.page, methods=["GET"]),
        Route("/openapi.json", openapi.openapi, methods=["GET"]),
        Route("/health", info.health, methods=["GET"]),
        Route("/metrics", info.metrics, methods=["GET"]),
        Route("/v1/engine", info.engine, methods=["GET"]),
        Route("/v1/models", info.models, methods=["GET"]),
        Route("/v1/models/load", info.load, methods=["POST"]),
        Route("/v1/models/unload", info.unload, methods=["POST"]),
        Route("/v1/models/{name:path}", info.model, methods=["GET"]),
        Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/compact", responses.compact, methods=["POST"]),
        Route("/v1/responses/{id}", responses.read, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", responses.items, methods=["GET"]),
        Route("/v1/messages", messages.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count, methods=["POST"]),
        Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
        Route("/api/chat", ollama.chat, methods=["POST"]),
        Route("/api/tags", ollama.tags, methods=["GET"]),
        Route("/api/version", ollama.version, methods=["GET"]),
        Route("/detokenize", tokenize.detokenize, methods=["POST"]),
        Route("/tokenize", tokenize.tokenize, methods=["POST"]),
        Route("/v1/completions", completions.completions, methods=["POST"]),
    ]
    paths = sorted({route.path for route in routes})
    layers = [
        Middleware(Requests, metrics=metrics, routes=paths),
        Middleware(
            OwnPages,
            origins=config.cors_origins,
            hosts=config.allowed_hosts,
            loopback=is_loopback(config.host),
        ),
    ]
    if config.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    if clients.asked:
        layers.append(Middleware(ApiKeys, clients=clients))
    layers.append(Middleware(BodyLimit, max_bytes=config.max_body_bytes))
    app = Starlette(
        routes=routes,
        middleware=layers,
        exception_handlers={
            HTTPException: on_http_exception,
            IngleError: on_error,
            TimeoutError: on_error,
            ClientGone: _on_client_gone,
            Exception: on_error,
        },
    )
    loader = MediaInput(media or MediaConfig(), metrics.media)
    app.state.ingle = ServerState(pool, config, metrics, loader, clients, tracer or NoTracer())
    return app


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the log and metrics do
