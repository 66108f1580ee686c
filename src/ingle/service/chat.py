"""A chat turn: messages to a prompt to a running generation."""

from __future__ import annotations

import asyncio

from ingle.service.generation import Generation, GenerationOptions
from ingle.service.models import TextModel
from ingle.text.messages import normalise
from ingle.text.special import encode_chat


async def start_chat(model: TextModel, messages: object, options: GenerationOptions) -> Generation:
    """Check, render, encode and submit. Nothing runs on the event loop for long.

    Raises:
        InvalidRequest: bad messages or options, a template that refuses, a prompt that is too long.
        QueueFull, EngineStopped: the engine does not take it.
    """
    checked = normalise(messages)
    template = model.template
    ids = await asyncio.to_thread(encode_chat, model.tokenizer, template, checked)
    return Generation(model, [ids], options, prompt_field="messages")
