"""A chat turn: messages, tools and wishes to a prompt and a grammar, to a running generation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ingle.contracts.grammar import Grammar
from ingle.contracts.media import MediaKind, MediaPart
from ingle.errors import InvalidRequest
from ingle.parsing.budget import ThinkingBudget
from ingle.parsing.calls import Tool
from ingle.parsing.channels import prompt_ends
from ingle.parsing.constraint import Output, ToolUse, check_tools, source_of
from ingle.service.generation import Generation, GenerationOptions, Prompt
from ingle.service.media import MediaInput, check_media, load_media, with_kinds
from ingle.service.models import TextModel
from ingle.text.media_prompt import expand, fill
from ingle.text.messages import normalise
from ingle.text.special import encode_chat

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "documents"})
_SWITCHES = ("enable_thinking", "thinking")  # what templates call the switch for reasoning


@dataclass(frozen=True, slots=True)
class Thinking:
    """How much reasoning is wished for."""

    on: bool | None = None  # None: as the model's template has it
    effort: str | None = None
    budget: int | None = None  # most tokens
    param: str = "reasoning_effort"  # the client's name for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """What every chat dialect can ask for, beside sampling."""

    messages: object
    places: tuple[str, ...] = ()  # what the client calls the messages, if not by their index
    use: ToolUse = field(default_factory=ToolUse)
    output: Output | None = None
    thinking: Thinking = field(default_factory=Thinking)
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])  # for the template
    add_generation_prompt: bool = True


async def encode_messages(
    model: TextModel, turn: ChatTurn, media: MediaInput | None = None, request_id: str = ""
) -> Prompt:
    """Check, load, render and encode. Nothing runs on the event loop for long.

    Raises:
        InvalidRequest: bad messages, a template that refuses, or media that are not taken.
        QueueFull: too many fetches wait.
    """
    render, parts = _renderer(model, turn)
    spec, loaded = model.media, await load_media(model, parts, media, request_id)

    def placed(text: str) -> str:
        return text if spec is None or not loaded else expand(text, spec, loaded)

    def encode() -> Prompt:
        ids, spans = render([item.kind for item in loaded], placed), ()
        if spec is not None and loaded:
            ids, spans = fill(ids, spec, loaded)
        reasoning = prompt_ends(model.markup, model.tokenizer, ids)
        return Prompt(ids, spans, loaded, markup=model.markup, reasoning=reasoning)

    return await asyncio.to_thread(encode)


async def count_tokens(model: TextModel, turn: ChatTurn) -> int:
    """Tokens of a prompt. Nothing is fetched or decoded: a picture counts with all that the model may give
    it, sounds and clips are refused.

    Raises:
        InvalidRequest: as `encode_messages`.
    """
    render, parts = _renderer(model, turn)
    check_media(model, parts)
    media = 0
    for part in parts:
        if part.kind != "image" or model.media is None:
            raise InvalidRequest(
                f"{part.where}: only pictures can be counted before they are there", param=part.where
            )
        media += (part.budget or model.media.image_budget) + 1  # its marks, less the placeholder's token
    pictures: list[MediaKind] = ["image"] * len(parts)
    ids = await asyncio.to_thread(render, pictures, str)
    return len(ids) + media


def _renderer(
    model: TextModel, turn: ChatTurn
) -> tuple[Callable[[Sequence[MediaKind], Callable[[str], str]], list[int]], Sequence[MediaPart]]:
    """What makes ids of a turn, once the kinds of its media are known; and its media."""
    parts: list[MediaPart] = []
    checked = normalise(turn.messages, parts, turn.places)
    check_tools(turn.use, model.markup, model.name)
    template, extra = model.template, _variables(model, turn)
    tools = [_described(tool) for tool in turn.use.tools] if model.markup.tools is not None else []

    def render(kinds: Sequence[MediaKind], expand: Callable[[str], str]) -> list[int]:
        return encode_chat(
            model.tokenizer,
            template,
            with_kinds(checked, kinds),
            tools=tools or None,
            add_generation_prompt=turn.add_generation_prompt,
            extra=extra,
            expand=expand,
        )

    return render, parts


async def start_chat(
    model: TextModel,
    turn: ChatTurn,
    options: GenerationOptions,
    media: MediaInput | None = None,
    request_id: str = "",
) -> Generation:
    """Encode, compile and submit.

    Raises:
        InvalidRequest: as `encode_messages`; a bad schema, bad options, or a prompt that is too long.
        QueueFull, EngineStopped: the engine does not take it.
    """
    prompt = await encode_messages(model, turn, media, request_id)
    options = replace(options, tools=turn.use.offered, grammar=await _grammar(model, turn, prompt))
    return Generation(model, [prompt], options, prompt_field="messages")


async def _grammar(model: TextModel, turn: ChatTurn, prompt: Prompt) -> Grammar | None:
    region, thinking = prompt.markup.reasoning, turn.thinking
    inside = prompt.reasoning == "open"
    thinks = region is not None and (thinking.on or (thinking.on is None and prompt.reasoning != "closed"))
    source = await asyncio.to_thread(
        source_of,
        prompt.markup,
        turn.use,
        turn.output,
        thinks=thinks,
        inside=inside,
        ends=model.tokenizer.eos_token_ids,
    )
    param = turn.output.param if turn.output is not None else "tools"
    grammar = None if source is None else await model.grammars.compile(source, param)
    if thinking.budget is None or region is None or not (thinks or inside):
        return grammar
    opens, closes = region.open.token_id, None if region.close is None else region.close.token_id
    if opens is None or closes is None:
        raise InvalidRequest(
            f"model {model.name!r} writes the marks of its reasoning in letters: it takes no budget",
            param=thinking.param,
            code="unsupported_value",
        )
    return ThinkingBudget(
        grammar,
        opens=opens,
        closes=closes,
        tokens=thinking.budget,
        inside=inside,
        vocab_size=max(model.engine.info.vocab_size, model.tokenizer.vocab_size),
    )


def _variables(model: TextModel, turn: ChatTurn) -> dict[str, Any]:
    """What the template gets beside messages and tools.

    Raises:
        InvalidRequest: reasoning is asked of a model that has none, or a reserved name is given.
    """
    for name in turn.variables:
        if name in _RESERVED:
            raise InvalidRequest(
                f"chat_template_kwargs holds {name!r}, which is set by the request itself",
                param="chat_template_kwargs",
            )
    out = dict(turn.variables)
    thinking, source = turn.thinking, model.template.source
    switch = next((name for name in _SWITCHES if name in source), None)
    if thinking.on and model.markup.reasoning is None:
        raise InvalidRequest(
            f"model {model.name!r} does not reason",
            param=thinking.param,
            code="unsupported_value",
        )
    if thinking.on is not None and switch is not None:
        out.setdefault(switch, thinking.on)
    if thinking.effort is not None and "reasoning_effort" in source:
        out.setdefault("reasoning_effort", thinking.effort)
    return out


def _described(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters:
        function["parameters"] = {"properties": {}, **tool.schema()}
    return {"type": "function", "function": function}
