"""The one table from exceptions to HTTP: status, OpenAI error type, and what the body says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ingle import errors

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str
    headers: Mapping[str, str]


_NONE: Mapping[str, str] = {}
_TABLE: tuple[tuple[type[Exception], Answer], ...] = (  # first match wins: subclasses go first
    (errors.Unauthorized, Answer(401, "authentication_error", {"www-authenticate": "Bearer"})),
    (errors.NotFound, Answer(404, "invalid_request_error", _NONE)),
    (errors.TooLarge, Answer(413, "invalid_request_error", {"connection": "close"})),
    (errors.QueueFull, Answer(429, "rate_limit_error", {"retry-after": "1"})),
    (errors.RequestError, Answer(400, "invalid_request_error", _NONE)),
    (errors.EngineStopped, Answer(503, "service_unavailable_error", {"retry-after": "5"})),
    (TimeoutError, Answer(504, "timeout_error", _NONE)),
    (errors.IngleError, Answer(500, "server_error", _NONE)),
)
_UNEXPECTED = Answer(500, "server_error", _NONE)


def answer_for(error: BaseException) -> Answer:
    return next((answer for kind, answer in _TABLE if isinstance(error, kind)), _UNEXPECTED)


def error_body(error: BaseException) -> bytes:
    """{"error": {message, type, param, code}}. Errors nobody planned show no internals."""
    answer = answer_for(error)
    code = "server_error"
    param = None
    if isinstance(error, errors.RequestError):
        message, param, code = error.message, error.param, error.code
    elif isinstance(error, errors.EngineStopped):
        message, code = str(error), "service_unavailable"
    elif isinstance(error, TimeoutError):
        message, code = str(error), "timeout"
    elif isinstance(error, errors.IngleError):
        message = str(error)
    else:
        message = "the server failed; its log has the details"
    return _body(message, answer.type, param, code)


def error_response(error: BaseException) -> Response:
    answer = answer_for(error)
    return Response(error_body(error), answer.status, dict(answer.headers), "application/json")


async def on_http_exception(_: Request, error: Exception) -> Response:
    """Starlette's own refusals (404, 405) in the API's shape."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    body = _body(str(error.detail), "invalid_request_error", None, code)
    return Response(body, error.status_code, dict(error.headers or {}), "application/json")


async def on_error(request: Request, error: Exception) -> Response:
    if answer_for(error).status >= 500:
        _log.error("request %s failed", request.scope.get("ingle.request_id"), exc_info=error)
    return error_response(error)


def _body(message: str, kind: str, param: str | None, code: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
