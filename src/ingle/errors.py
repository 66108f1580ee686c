"""Every error Ingle raises on purpose, in one tree; `server/errors.py` alone maps it to HTTP.

IngleError
├── RequestError            the caller's fault; carries `param` and `code`
│   ├── InvalidRequest      a field is missing, malformed, out of range or asks for what we do not do
│   │   ├── ContextOverflow prompt (and max_tokens) do not fit the model's context
│   │   ├── InsufficientMemory its KV can never fit the memory that this engine may take
│   │   └── MediaRefused    an address, a picture, a sound or a clip is not taken; `code` names the class
│   ├── Unauthorized        no key, or a wrong one
│   ├── NotFound            no such model or route
│   ├── TooLarge            the body is over the limit
│   ├── Forbidden           a web page of another origin, or a name that is not this server's
│   ├── RateLimited         an API key went over one of its limits
│   └── QueueFull           the bounded queue is full; try again
├── CheckpointError         a model file is missing, foreign, cut short or hostile
├── SourceError             a model could not be found or fetched
├── ConfigError             a setting is out of range
└── EngineError             our fault; the request failed inside the engine
    └── EngineStopped       the engine is shutting down or dead
"""

from __future__ import annotations


class IngleError(Exception):
    """Base of all errors with a message that is fit to show to a user."""


class RequestError(IngleError):
    """The request cannot be served as it stands. `param` names the offending field."""

    code: str = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """A field is missing, malformed, out of range, or asks for something Ingle does not do."""

    code = "invalid_value"


class ContextOverflow(InvalidRequest):
    """The prompt, or prompt plus `max_tokens`, is longer than the model's context."""

    code = "context_length_exceeded"


class InsufficientMemory(InvalidRequest):
    """The sequence's keys and values are larger than all the memory that the engine may give to KV."""

    code = "insufficient_memory"


class MediaRefused(InvalidRequest):
    """A piece of media cannot be had, decoded or shown to this model. Terminal: a retry changes nothing.

    The message is one public sentence for its class and tells no address, redirect, decoder text or
    system error; `detail` has those, for the decision log only.
    """

    code = "media_refused"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.detail = detail or message


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"


class NotFound(RequestError):
    """The named model or route does not exist."""

    code = "model_not_found"


class TooLarge(RequestError):
    """The request body is over the size limit."""

    code = "request_too_large"


class Forbidden(RequestError):
    """The request came through a web page that has no business here."""

    code = "forbidden"


class RateLimited(RequestError):
    """An API key went over one of its limits; the same request may succeed after `retry_after_s`."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(RequestError):
    """The bounded queue is full; the same request may succeed later."""

    code = "queue_full"


class CheckpointError(IngleError):
    """A model file is missing, foreign, cut short, inconsistent or hostile."""


class SourceError(IngleError):
    """A model could not be found, fetched or verified."""


class ConfigError(IngleError):
    """A setting is out of range or contradicts another one."""


class EngineError(IngleError):
    """The request failed inside the engine through no fault of the caller."""


class EngineStopped(EngineError):
    """The engine is shutting down, or its thread has died."""
