"""What Chat Completions and Completions share: sampling fields and their checks."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.service.generation import GenerationOptions, Usage
from ingle.service.models import TextModel

MAX_STOPS = 16
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    include_obfuscation: bool = False  # padding against traffic analysis: accepted, none is added


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields by the names of the OpenAI API, and the extras that local servers share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] = 1
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Count | None = None
    ignore_eos: bool = False
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    stop_token_ids: list[int] | None = None
    timeout_s: Annotated[float, Meta(gt=0)] | None = None


_PASSED = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "repetition_penalty",
    "min_tokens",
)


def generation_options(
    fields: SamplingFields,
    model: TextModel,
    config: ServerConfig,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
) -> GenerationOptions:
    """Raises InvalidRequest: names the field, its value and the limit."""
    if fields.n > config.max_choices:
        raise InvalidRequest(f"n is {fields.n}, this server allows up to {config.max_choices}", param="n")
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    sampling: dict[str, Any] = {
        name: value for name in _PASSED if (value := getattr(fields, name)) is not None
    }
    if fields.top_k is not None:
        sampling["top_k"] = 0 if fields.top_k == -1 else fields.top_k  # -1 means all, as elsewhere
    sampling["logit_bias"] = _logit_bias(fields.logit_bias or {}, model)
    sampling["top_logprobs"] = top_logprobs
    return GenerationOptions(
        n=fields.n,
        max_tokens=max_tokens,
        seed=fields.seed,
        stop=_stops(fields.stop),
        stop_token_ids=_stop_token_ids(fields.stop_token_ids or [], model),
        ignore_eos=fields.ignore_eos,
        priority=fields.priority,
        timeout_s=fields.timeout_s,
        sampling=sampling,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings, the limit is {MAX_STOPS}", param="stop")
    for index, text in enumerate(stops):
        if not text:
            raise InvalidRequest(f"stop[{index}] is an empty string", param="stop")
        if len(text) > 1000:
            raise InvalidRequest(f"stop[{index}] has {len(text)} characters, the limit is 1000", param="stop")
    return tuple(stops)


def _logit_bias(bias: Mapping[str, float], model: TextModel) -> dict[int, float]:
    size = model.engine.info.vocab_size
    out: dict[int, float] = {}
    for key, value in bias.items():
        if not re.fullmatch(r"[0-9]{1,10}", key) or int(key) >= size:
            raise InvalidRequest(
                f"logit_bias has the key {key[:40]!r}, expected a token id from 0 to {size - 1}",
                param="logit_bias",
            )
        out[int(key)] = value
    return out


def _stop_token_ids(ids: list[int], model: TextModel) -> tuple[int, ...]:
    size = model.engine.info.vocab_size
    if len(ids) > 256:
        raise InvalidRequest(f"stop_token_ids has {len(ids)} ids, the limit is 256", param="stop_token_ids")
    for token in ids:
        if not 0 <= token < size:
            raise InvalidRequest(
                f"stop_token_ids holds {token}, expected token ids from 0 to {size - 1}",
                param="stop_token_ids",
            )
    return tuple(ids)


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """What every answer object begins with; `prefix` begins its id, `kind` is its `object`."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage(tokens: Usage) -> dict[str, Any]:
    details: dict[str, Any] = {"cached_tokens": tokens.cached_tokens}
    if tokens.media:
        for kind in ("image", "audio", "video"):
            details[f"{kind}_tokens"] = sum(m.soft_tokens for m in tokens.media if m.kind == kind)
        details["media"] = [
            {"part": m.part.where, "kind": m.kind, "tokens": m.soft_tokens, "truncated": m.truncated}
            for m in tokens.media
        ]
    return {
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.completion_tokens,
        "total_tokens": tokens.prompt_tokens + tokens.completion_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": tokens.reasoning_tokens,
            "drafted_tokens": tokens.drafted_tokens,
            "accepted_tokens": tokens.accepted_tokens,
        },
    }


def visible(data: bytes) -> str:
    """A token's bytes as text for people; bytes that are no character show as U+FFFD."""
    return data.decode("utf-8", "replace")
