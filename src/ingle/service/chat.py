"""A chat turn: messages to a prompt to a running generation."""

from __future__ import annotations

import asyncio

from ingle.contracts.media import MediaPart
from ingle.service.generation import Generation, GenerationOptions, Prompt
from ingle.service.media import MediaInput, load_media, with_kinds
from ingle.service.models import TextModel
from ingle.text.media_prompt import expand, fill
from ingle.text.messages import normalise
from ingle.text.special import encode_chat


async def encode_messages(
    model: TextModel, messages: object, media: MediaInput | None = None, request_id: str = ""
) -> Prompt:
    """Check, load, render and encode. Nothing runs on the event loop for long.

    Raises:
        InvalidRequest: bad messages, a template that refuses, or media that are not taken.
        QueueFull: too many fetches wait.
    """
    parts: list[MediaPart] = []
    checked = normalise(messages, parts)
    template, spec = model.template, model.media
    loaded = await load_media(model, parts, media, request_id)
    if spec is None or not loaded:
        return Prompt(await asyncio.to_thread(encode_chat, model.tokenizer, template, checked))

    def encode() -> Prompt:
        ids = encode_chat(
            model.tokenizer,
            template,
            with_kinds(checked, loaded),
            expand=lambda text: expand(text, spec, loaded),
        )
        filled, spans = fill(ids, spec, loaded)
        return Prompt(filled, spans, loaded)

    return await asyncio.to_thread(encode)


async def start_chat(
    model: TextModel,
    messages: object,
    options: GenerationOptions,
    media: MediaInput | None = None,
    request_id: str = "",
) -> Generation:
    """Encode and submit.

    Raises:
        InvalidRequest: as `encode_messages`; bad options, or a prompt that is too long.
        QueueFull, EngineStopped: the engine does not take it.
    """
    prompt = await encode_messages(model, messages, media, request_id)
    return Generation(model, [prompt], options, prompt_field="messages")
