"""What the routes of one server share: models, settings, metrics, and the requests under way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle.config import ServerConfig
from ingle.errors import EngineStopped
from ingle.server.clients import Clients
from ingle.server.metrics import Metrics
from ingle.server.sse import EventStreamResponse
from ingle.server.store import ResponseStore
from ingle.server.tracing import Tracer
from ingle.service.generation import Generation
from ingle.service.media import MediaInput
from ingle.service.model_pool import ModelPool
from ingle.service.models import TextModel

_log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"


class ServerState:
    def __init__(
        self,
        pool: ModelPool,
        config: ServerConfig,
        metrics: Metrics,
        media: MediaInput,
        clients: Clients,
        tracer: Tracer,
    ) -> None:
        self.pool, self.config, self.metrics, self.media = pool, config, metrics, media
        self.clients, self.tracer = clients, tracer
        self.responses = ResponseStore(config.responses_file, config.responses_bytes)
        self.draining = False
        self._active: set[Generation] = set()

    async def model(self, request: Request, name: str) -> TextModel:
        """The model, loaded, and held until the request's last byte.

        Raises:
            NotFound, QueueFull, EngineStopped: as `ModelPool.acquire`.
        """
        model = await self.pool.acquire(name)
        request.scope["ingle.held"].append(lambda: self.pool.release(name))
        request.scope["ingle.facts"]["model"] = name
        return model

    async def body(self, request: Request) -> bytes:
        """Of a request for the models.

        Raises:
            EngineStopped: the server is shutting down.
        """
        if self.draining:
            raise EngineStopped(SHUTTING_DOWN)
        body = await request.body()
        if self.config.log_prompts:
            facts = {"request_id": request_id_of(request), "body": body.decode("utf-8", "replace")}
            _log.info("request body", extra={"facts": facts})
        return body

    def count_unknown(self, name: str) -> None:
        self.metrics.ignored_fields.inc()
        _log.debug("ignored unknown field %r", name[:100])

    def begin(self, generation: Generation) -> None:
        self._active.add(generation)

    def end(self, generation: Generation) -> None:
        self._active.discard(generation)

    def end_all(self) -> None:
        """Running requests end with a clear reason."""
        for generation in self._active:
            generation.cancel(SHUTTING_DOWN)


def json_response(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def event_stream(request: Request, chunks: AsyncIterator[bytes]) -> Response:
    return EventStreamResponse(chunks, keep_alive_s=state_of(request).config.keep_alive_s)


def request_id_of(request: Request) -> str:
    return str(request.scope.get("ingle.request_id", ""))


def client_of(request: Request) -> bytes:
    """Who asks: the digest of the API key, empty where none is asked for. Clients share no KV."""
    client: bytes = request.scope.get("ingle.client", b"")
    return client


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.ingle
    return state
