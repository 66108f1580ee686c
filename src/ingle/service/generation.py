"""Run the choices of one API request on the engine and give their text as it comes."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ingle.contracts.grammar import Grammar
from ingle.contracts.media import LoadedMedia
from ingle.contracts.request import (
    ContentSpan,
    Finished,
    Request,
    SamplingParams,
    Started,
    TokenLogprobs,
    TokensCommitted,
)
from ingle.errors import ContextOverflow, InvalidRequest
from ingle.parsing.calls import Call, Tool
from ingle.parsing.channels import Channels, PromptEnd, Reasoning
from ingle.parsing.markup import Markup
from ingle.service.choice_text import ChoiceText, Piece, Shown, TokenText
from ingle.service.models import TextModel
from ingle.service.streams import EventStream, own_end

_SEEDS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What every dialect can ask for. `sampling` holds fields of `SamplingParams` by name."""

    n: int = 1
    max_tokens: int | None = None  # None: what is left of the context
    seed: int | None = None  # any integer; None: a random one
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0  # higher goes first
    timeout_s: float | None = None  # the client waits no longer than this
    cache_key: bytes = b""  # only requests with equal keys share KV
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: tuple[Tool, ...] = ()  # whose calls are looked for
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int
    text: str
    tokens: tuple[TokenText, ...]  # those that this text finishes, when logprobs were asked for


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A whole call: number `number` of its choice, from 0."""

    index: int
    number: int
    id: str
    call: Call


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    index: int
    reason: Literal["stop", "length", "tool_calls"]
    stop: str | None = None  # the stop string that matched


@dataclass(slots=True)
class Usage:
    """Tokens of all choices together, so far."""

    prompt_tokens: int  # once for each prompt, however many choices it has
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of completion_tokens, those of reasoning and its marks
    cached_tokens: int = 0  # of prompt_tokens, those whose KV was there already
    media: tuple[LoadedMedia, ...] = ()  # whose soft tokens are among prompt_tokens
    drafts: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])  # of each choice

    @property
    def drafted_tokens(self) -> int:
        """Proposed to the model."""
        return sum(drafted for drafted, _ in self.drafts.values())

    @property
    def accepted_tokens(self) -> int:
        """Of the drafted ones those that the model would have said itself."""
        return sum(accepted for _, accepted in self.drafts.values())


@dataclass(frozen=True, slots=True)
class Prompt:
    """Encoded, with the places of its media."""

    ids: Sequence[int]
    spans: tuple[ContentSpan, ...] = ()
    media: tuple[LoadedMedia, ...] = ()
    markup: Markup = field(default_factory=Markup)  # of the answer; raw prompts have none
    reasoning: PromptEnd | None = None  # how the prompt ends


TextEvent: TypeAlias = TextDelta | ReasoningDelta | ToolCalled | ChoiceFinished


class Generation:
    """The running choices of one request: `prompts` x n of them, numbered in that order.

    `prompt_field` is the client's name for the prompt, for errors. Iterate `events` once. Leaving
    early, by exception or cancellation too, ends them in the engine.
    """

    def __init__(
        self,
        model: TextModel,
        prompts: Sequence[Prompt],
        options: GenerationOptions,
        *,
        prompt_field: str,
    ) -> None:
        media = tuple(item for prompt in prompts for item in prompt.media)
        self.usage = Usage(sum(len(prompt.ids) for prompt in prompts), media=media)
        self.model, self.options = model, options
        self.operation = "chat" if prompt_field == "messages" else "text_completion"
        self._choices = options.n
        self._streams: list[EventStream] = []
        self._texts: list[ChoiceText] = []
        bridge = model.bridges.here()
        group = uuid.uuid4().hex
        seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
        try:
            for prompt in prompts:
                for choice in range(options.n):
                    sampling = _sampling(
                        model, options, prompt_field, len(prompt.ids), (seed + choice) % _SEEDS
                    )
                    request = Request(
                        id=f"{group}-{len(self._streams)}",
                        prompt=tuple(prompt.ids),
                        content=prompt.spans,
                        sampling=sampling,
                        priority=options.priority,
                        cache_key=options.cache_key,
                        grammar=options.grammar,
                    )
                    self._streams.append(bridge.open(request))
                    channels = Channels(
                        model.tokenizer, prompt.markup, options.tools, inside=prompt.reasoning == "open"
                    )
                    self._texts.append(ChoiceText(model.tokenizer, channels, options.stop))
        except BaseException:
            self.abandon("another choice of the request was refused")
            raise

    @property
    def choices(self) -> int:
        return len(self._streams)

    def cancel(self, detail: str) -> None:
        """End all choices; `events` then raises EngineStopped with `detail`."""
        for stream in self._streams:
            stream.cancel(detail)

    def fail(self, error: Exception) -> None:
        """End all choices at once, whatever the engine is doing; `events` then raises `error`."""
        for stream in self._streams:
            stream.fail(error)

    def abandon(self, detail: str = "nobody listens any more") -> None:
        for stream in self._streams:
            stream.abandon(detail)

    async def events(self) -> AsyncGenerator[TextEvent]:
        """Raises:
        EngineError: a choice failed in the engine.
        EngineStopped: the request was ended from outside.
        Exception: what `fail` was given.
        """
        try:
            if len(self._streams) == 1:
                async for event in self._choice(0):
                    yield event
            else:
                async for event in self._merged():
                    yield event
        finally:
            self.abandon()

    async def _merged(self) -> AsyncIterator[TextEvent]:
        """The choices' events as they come."""
        merged: asyncio.Queue[TextEvent | Exception | None] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for event in self._choice(index):
                    merged.put_nowait(event)
                merged.put_nowait(None)
            except Exception as error:
                merged.put_nowait(error)

        tasks = [asyncio.create_task(pump(index)) for index in range(len(self._streams))]
        try:
            open_choices = len(tasks)
            while open_choices:
                event = await merged.get()
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    open_choices -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()

    async def _choice(self, index: int) -> AsyncIterator[TextEvent]:
        stream, text, told = self._streams[index], self._texts[index], _Told(index)
        ended: Finished | None = None
        while ended is None:
            # Whatever came meanwhile is told together: a slow reader gets fewer, larger pieces.
            tokens: list[int] = []
            logprobs: list[TokenLogprobs] = []
            for event in await stream.next():
                if isinstance(event, TokensCommitted):
                    tokens += event.tokens
                    logprobs += event.logprobs or ()
                    self.usage.drafts[index] = event.drafted, event.accepted
                elif isinstance(event, Finished):
                    self.usage.drafts[index] = event.drafted, event.accepted
                    ended = event
                elif isinstance(event, Started) and index % self._choices == 0:
                    self.usage.cached_tokens += event.cached_tokens  # the first choice speaks for its prompt
            shown = self._shown(text, tokens, logprobs)
            for out in told.events(shown):
                yield out
            if text.stopped is not None:
                stream.abandon("a stop string matched")
                yield ChoiceFinished(index, "stop", text.stopped)
                return
        end = own_end(ended)
        for out in told.events(text.flush()):
            yield out
        reason = "stop" if text.stopped is not None else end
        if told.calls and reason == "stop":
            reason = "tool_calls"
        yield ChoiceFinished(index, reason, text.stopped)

    def _shown(
        self, text: ChoiceText, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> list[Shown]:
        """What new tokens show, up to a stop string."""
        usage, before = self.usage, text.reasoned
        shown = None if logprobs else text.push_run(tokens)
        if shown is not None:
            usage.completion_tokens += len(tokens)
        else:
            shown = []
            for token, entry in zip(tokens, logprobs or itertools.repeat(None)):  # noqa: B905 # the shorter ends it
                usage.completion_tokens += 1
                shown += text.push(token, entry)
                if text.stopped is not None:
                    break
        usage.reasoning_tokens += text.reasoned - before
        return shown


class _Told:
    """What of a choice was told, as events; text that comes together is told together."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.calls = 0

    def events(self, shown: Sequence[Shown]) -> Iterator[TextEvent]:
        texts: list[str] = []
        tokens: list[TokenText] = []
        for number, item in enumerate(shown):
            if isinstance(item, Piece):
                texts.append(item.text)
                tokens += item.tokens
                if number + 1 < len(shown) and isinstance(shown[number + 1], Piece):
                    continue
                if tokens or any(texts):
                    yield TextDelta(self._index, "".join(texts), tuple(tokens))
                texts, tokens = [], []
            elif isinstance(item, Reasoning):
                yield ReasoningDelta(self._index, item.text)
            else:
                self.calls += 1
                yield ToolCalled(self._index, self.calls - 1, f"call_{uuid.uuid4().hex[:24]}", item)


def _sampling(
    model: TextModel, options: GenerationOptions, prompt_field: str, prompt: int, seed: int
) -> SamplingParams:
    info = model.engine.info
    context = info.context_length
    left = context - prompt
    if left < 1:
        raise ContextOverflow(
            f"the prompt has {prompt} tokens, the context holds {context} and needs room for an answer",
            param=prompt_field,
        )
    wanted = options.max_tokens
    if wanted is not None and wanted > left:
        raise ContextOverflow(
            f"{prompt} prompt tokens and max_tokens {wanted} make {prompt + wanted}, "
            f"the context holds {context}",
            param="max_tokens",
        )
    ends = () if options.ignore_eos else model.tokenizer.eos_token_ids
    try:
        return SamplingParams(
            **{**model.sampling_defaults, **options.sampling},
            seed=seed,
            max_tokens=wanted or max(1, min(left, (info.fitting_tokens or context) - prompt)),
            stop_token_ids=tuple(dict.fromkeys((*ends, *options.stop_token_ids))),
        )
    except ValueError as error:
        found = re.match(r"[a-z_]+", str(error))
        raise InvalidRequest(str(error), param=found[0] if found else None) from None
