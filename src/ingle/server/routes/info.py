"""What is served and how it is: models, health, metrics, and a word at the root."""

from __future__ import annotations

import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ingle.server.metrics import CONTENT_TYPE
from ingle.server.state import json_response, state_of
from ingle.service.models import TextModel


def _model(model: TextModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "ingle",
        "max_model_len": model.engine.info.context_length,
    }


async def models(request: Request) -> Response:
    data = [_model(model) for model in state_of(request).models.values()]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    return json_response(_model(state_of(request).model(request.path_params["name"])))


async def health(request: Request) -> Response:
    state = state_of(request)
    problems: list[str] = []
    for served in state.models.values():
        stats = served.engine.stats()
        if not stats.alive:
            problems.append(f"the engine of {served.name} is dead")
        elif stats.last_step_age_s > state.config.stuck_after_s:
            problems.append(f"the engine of {served.name} is stuck for {stats.last_step_age_s:.0f} s")
    if state.draining:
        problems.append("the server is shutting down")
    if problems:
        return json_response({"status": "unhealthy", "problems": problems}, 503)
    return json_response({"status": "ok"})


async def engine(request: Request) -> Response:
    """What each engine does at this moment, for people."""
    state = state_of(request)
    body: dict[str, Any] = {}
    for model in state.models.values():
        stats, info = model.engine.stats(), model.engine.info
        body[model.name] = {
            "backend": info.backend,
            "context_length": info.context_length,
            "fitting_tokens": info.fitting_tokens or info.context_length,
            **dataclasses.asdict(stats),
        }
    return json_response(body)


async def metrics(request: Request) -> Response:
    return Response(state_of(request).metrics.render(), media_type=CONTENT_TYPE)


async def root(request: Request) -> Response:
    names = ", ".join(state_of(request).models)
    return PlainTextResponse(f"Ingle serves {names}. The OpenAI-compatible API is under /v1.\n")
