"""The one table from exceptions to HTTP: status, error types, and what the body says in each dialect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ingle import errors

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str  # in the OpenAI dialects
    anthropic: str  # type in the Anthropic dialect
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


_MAX_CHARS = 1000  # of a message
_INVALID = "invalid_request_error"
_TABLE: tuple[tuple[type[Exception], Answer], ...] = (  # first match wins: subclasses go first
    (
        errors.Unauthorized,
        Answer(401, "authentication_error", "authentication_error", {"www-authenticate": "Bearer"}),
    ),
    (errors.Forbidden, Answer(403, "permission_error", "permission_error")),
    (errors.RateLimited, Answer(429, "rate_limit_error", "rate_limit_error")),
    (errors.NotFound, Answer(404, _INVALID, "not_found_error")),
    (errors.TooLarge, Answer(413, _INVALID, "request_too_large", {"connection": "close"})),
    (errors.QueueFull, Answer(429, "rate_limit_error", "rate_limit_error", {"retry-after": "1"})),
    (errors.RequestError, Answer(400, _INVALID, _INVALID)),
    (
        errors.EngineStopped,
        Answer(503, "service_unavailable_error", "overloaded_error", {"retry-after": "5"}),
    ),
    (TimeoutError, Answer(504, "timeout_error", "timeout_error")),
    (errors.IngleError, Answer(500, "server_error", "api_error")),
)
_UNEXPECTED = Answer(500, "server_error", "api_error")
_REFUSED = Answer(400, _INVALID, _INVALID)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as clients see it, before it takes a dialect's shape."""

    answer: Answer
    message: str
    param: str | None
    code: str


def answer_for(error: BaseException) -> Answer:
    return next((answer for kind, answer in _TABLE if isinstance(error, kind)), _UNEXPECTED)


def problem_of(error: BaseException) -> Problem:
    """Errors nobody planned show no internals."""
    answer = answer_for(error)
    if isinstance(error, errors.RateLimited):
        answer = replace(answer, headers={"retry-after": str(error.retry_after_s)})
    if isinstance(error, errors.RequestError):
        return Problem(answer, _cut(error.message), error.param and _cut(error.param), error.code)
    if isinstance(error, errors.EngineStopped):
        return Problem(answer, str(error), None, "service_unavailable")
    if isinstance(error, TimeoutError):
        return Problem(answer, str(error), None, "timeout")
    if isinstance(error, errors.IngleError):
        return Problem(answer, str(error), None, "server_error")
    return Problem(answer, "the server failed; its log has the details", None, "server_error")


def _cut(text: str) -> str:
    """What clients sent is told back to them, but not all of it."""
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + "..."


def openai_error(problem: Problem) -> dict[str, Any]:
    body = {
        "message": problem.message,
        "type": problem.answer.type,
        "param": problem.param,
        "code": problem.code,
    }
    return {"error": body}


def anthropic_error(problem: Problem) -> dict[str, Any]:
    return {"type": "error", "error": {"type": problem.answer.anthropic, "message": problem.message}}


def ollama_error(problem: Problem) -> dict[str, Any]:
    return {"error": problem.message}


_SHAPES: tuple[tuple[str, Callable[[Problem], dict[str, Any]]], ...] = (  # by what a path begins with
    ("/v1/messages", anthropic_error),
    ("/api/", ollama_error),
    ("/", openai_error),
)


def error_response(error: BaseException, scope: Scope) -> Response:
    return _response(problem_of(error), scope)


def _response(problem: Problem, scope: Scope) -> Response:
    path: str = scope.get("path", "/")
    shape = next((shape for prefix, shape in _SHAPES if path.startswith(prefix)), openai_error)
    body = msgspec.json.encode(shape(problem))
    return Response(body, problem.answer.status, dict(problem.answer.headers), "application/json")


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (404, 405) in the API's shape."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    kind = "not_found_error" if error.status_code == 404 else _INVALID
    answer = replace(_REFUSED, status=error.status_code, anthropic=kind, headers=dict(error.headers or {}))
    return _response(Problem(answer, str(error.detail), None, code), request.scope)


async def on_error(request: Request, error: Exception) -> Response:
    if answer_for(error).status >= 500:
        _log.error("request %s failed", request.scope.get("ingle.request_id"), exc_info=error)
    return error_response(error, request.scope)
