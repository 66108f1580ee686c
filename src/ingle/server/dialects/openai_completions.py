"""OpenAI Completions (the older, raw form): parse the request, render chunks and the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from ingle.config import ServerConfig
from ingle.errors import InvalidRequest
from ingle.server import sse
from ingle.server.answers import Collected
from ingle.server.dialects import wishes
from ingle.server.dialects.common import SamplingFields, generation_options, head, usage, visible
from ingle.server.errors import openai_error, problem_of
from ingle.server.fields import Harmless, anything, decode, only
from ingle.service.chat import Output
from ingle.service.choice_text import TokenText
from ingle.service.generation import ChoiceFinished, Generation, GenerationOptions, TextDelta, TextEvent
from ingle.service.media import Parts
from ingle.service.models import TextModel

DEFAULT_MAX_TOKENS = 16  # the API's own default
MAX_PROMPTS = 64


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: Any
    echo: bool = False
    best_of: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    response_format: Any = None


UNSUPPORTED: Mapping[str, Harmless] = {
    "user": anything,
    "suffix": only(""),
    "guided_json": only(),
    "guided_regex": only(),
    "messages": only([]),
    "top_logprobs": only(),
    "max_completion_tokens": only(),
}


def parse(body: bytes, count_unknown: Callable[[str], None]) -> CompletionRequest:
    return decode(body, CompletionRequest, UNSUPPORTED, count_unknown)


def prompts(request: CompletionRequest) -> list[str | list[int] | Parts]:
    """A string, token ids, a list of either, or one prompt as a list of text and media parts.

    Raises:
        InvalidRequest: anything else, an empty list, or too many prompts.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequest(
            "prompt must be a string, a list of token ids, or a non-empty list of those", param="prompt"
        )
    items = cast("list[Any]", prompt)
    if _token_ids(items):
        return [cast("list[int]", items)]
    if isinstance(items[0], dict):
        return [Parts(items)]
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt holds {len(items)} prompts, the limit is {MAX_PROMPTS}", param="prompt")
    for index, item in enumerate(items):
        if not isinstance(item, str) and not (isinstance(item, list) and _token_ids(cast("list[Any]", item))):
            raise InvalidRequest(
                f"prompt[{index}] must be a string or a list of token ids, got {repr(item)[:60]}",
                param="prompt",
            )
    return items


def _token_ids(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(i, int) and not isinstance(i, bool) for i in items)


def options(request: CompletionRequest, model: TextModel, config: ServerConfig) -> GenerationOptions:
    if request.best_of is not None and request.best_of != request.n:
        raise InvalidRequest(
            f"best_of is {request.best_of}, it is supported only when equal to n ({request.n})",
            param="best_of",
        )
    if request.echo and request.logprobs is not None:
        raise InvalidRequest("echo together with logprobs is not supported", param="logprobs")
    return generation_options(
        request,
        model,
        config,
        max_tokens=DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        top_logprobs=request.logprobs,
    )


def output(request: CompletionRequest) -> Output | None:
    return wishes.response_format(request.response_format)


class CompletionRenderer:
    """`text_completion` objects; a stream's chunks have the same shape as the answer."""

    def __init__(
        self,
        model: str,
        generation: Generation,
        echoes: Sequence[str],
        *,
        logprobs: bool,
        with_usage: bool = False,
    ) -> None:
        """`echoes`: text before each choice."""
        self._head = head("cmpl", "text_completion", model)
        self._generation, self._echoes = generation, echoes
        self._logprobs, self._with_usage = logprobs, with_usage
        self._shown: dict[int, int] = {}  # characters so far, for text_offset

    def answer(self, done: Sequence[Collected]) -> bytes:
        choices = [
            self._choice(i, echo + c.text, c.tokens, c.reason)
            for i, (echo, c) in enumerate(zip(self._echoes, done, strict=True))
        ]
        return msgspec.json.encode({**self._body(choices), "usage": usage(self._generation.usage)})

    def first(self) -> bytes:
        return b"".join(
            sse.event(self._body([self._choice(i, echo)])) for i, echo in enumerate(self._echoes) if echo
        )

    def event(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta):
            return sse.event(self._body([self._choice(event.index, event.text, event.tokens)]))
        assert isinstance(event, ChoiceFinished), "raw completions have neither reasoning nor calls"
        return sse.event(self._body([self._choice(event.index, "", reason=event.reason)]))

    def last(self) -> bytes:
        if not self._with_usage:
            return sse.DONE
        return sse.event({**self._body([]), "usage": usage(self._generation.usage)}) + sse.DONE

    def failed(self, error: Exception) -> bytes:
        return sse.event(openai_error(problem_of(error)))

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenText] = (), reason: str | None = None
    ) -> dict[str, Any]:
        lined = None
        if self._logprobs:
            lined = self._legacy(index, tokens)
        return {"index": index, "text": text, "logprobs": lined, "finish_reason": reason}

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "choices": choices}

    def _legacy(self, index: int, tokens: Sequence[TokenText]) -> dict[str, Any]:
        offsets: list[int] = []
        for token in tokens:
            at = self._shown.get(index, 0)
            offsets.append(at)
            self._shown[index] = at + len(visible(token.data))
        return {
            "tokens": [visible(token.data) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{visible(d): p for _, d, p in reversed(token.top)} for token in tokens],
            "text_offset": offsets,
        }
