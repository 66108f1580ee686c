"""What the routes of one server share: models, settings, metrics, and the requests under way."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle.config import ServerConfig
from ingle.errors import EngineStopped, NotFound
from ingle.server.metrics import Metrics
from ingle.server.store import ResponseStore
from ingle.service.generation import Generation
from ingle.service.media import MediaInput
from ingle.service.models import TextModel

_log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"


class ServerState:
    def __init__(
        self, models: Sequence[TextModel], config: ServerConfig, metrics: Metrics, media: MediaInput
    ) -> None:
        self.models = {model.name: model for model in models}
        self.config, self.metrics, self.media = config, metrics, media
        self.responses = ResponseStore(config.responses_file, config.responses_bytes)
        self.draining = False
        self._active: set[Generation] = set()

    def model(self, name: str) -> TextModel:
        """Raises NotFound: it is not served here."""
        model = self.models.get(name)
        if model is None:
            served = ", ".join(self.models)
            raise NotFound(f"model {name[:200]!r} is not served here; served: {served}", param="model")
        return model

    def count_unknown(self, name: str) -> None:
        self.metrics.ignored_fields.inc()
        _log.debug("ignored unknown field %r", name[:100])

    def refuse_if_draining(self) -> None:
        if self.draining:
            raise EngineStopped(SHUTTING_DOWN)

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


def request_id_of(request: Request) -> str:
    return str(request.scope.get("ingle.request_id", ""))


def client_of(request: Request) -> bytes:
    """Who asks: the digest of the API key, empty where none is asked for. Clients share no KV."""
    client: bytes = request.scope.get("ingle.client", b"")
    return client


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.ingle
    return state
