"""What is served and how it is: models, health, metrics, and a word at the root."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle.server.fields import decode
from ingle.server.metrics import CONTENT_TYPE
from ingle.server.state import json_response, state_of
from ingle.service.model_pool import Place


def _model(place: Place) -> dict[str, Any]:
    opened = place.opened
    return {
        "id": place.name,
        "object": "model",
        "created": place.created,
        "owned_by": "ingle",
        "max_model_len": None if opened is None else opened.model.engine.info.context_length,
        "status": "unloaded" if opened is None else "loaded",
    }


async def models(request: Request) -> Response:
    data = [_model(place) for place in state_of(request).pool.places]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    return json_response(_model(state_of(request).pool.place(request.path_params["name"])))


class ModelRequest(msgspec.Struct):
    model: str


async def load(request: Request) -> Response:
    """Loads a model before anybody asks it something."""
    state = state_of(request)
    wanted = decode(await state.body(request), ModelRequest, {}, state.count_unknown)
    await state.model(request, wanted.model)
    return json_response(_model(state.pool.place(wanted.model)))


async def unload(request: Request) -> Response:
    """Gives a model's memory back; the next request for it loads it again."""
    state = state_of(request)
    wanted = decode(await state.body(request), ModelRequest, {}, state.count_unknown)
    await state.pool.unload(wanted.model)
    return json_response(_model(state.pool.place(wanted.model)))


async def health(request: Request) -> Response:
    state = state_of(request)
    problems: list[str] = []
    for served in state.pool.loaded:
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
    for model in state.pool.loaded:
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
