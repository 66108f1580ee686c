"""Plain completion: a raw prompt, as text or as token ids, to a running generation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ingle.errors import InvalidRequest
from ingle.parsing.constraint import Output, ToolUse, source_of
from ingle.parsing.markup import Markup
from ingle.service.generation import Generation, GenerationOptions, Prompt
from ingle.service.media import MediaInput, Parts, encode_parts
from ingle.service.models import TextModel


async def encode_prompts(
    model: TextModel,
    prompts: Sequence[str | Sequence[int] | Parts],
    media: MediaInput | None = None,
    request_id: str = "",
    field: str = "prompt",
) -> list[Prompt]:
    """Each prompt encoded; `field` is the client's name for them.

    Control tokens in raw prompts are recognised: the caller writes them.

    Raises:
        InvalidRequest: an empty prompt or a token id outside the vocabulary.
    """
    size = model.engine.info.vocab_size
    encoded: list[Prompt] = []
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, Parts):
            encoded.append(await encode_parts(model, prompt, media, request_id))
            continue
        if isinstance(prompt, str):
            ids = await asyncio.to_thread(model.tokenizer.prompt_ids, prompt)
            if not ids and model.tokenizer.bos_token_id is not None:
                ids = [model.tokenizer.bos_token_id]
        else:
            ids = list(prompt)
        bad = next((i for i in ids if not 0 <= i < size), None)
        if bad is not None:
            raise InvalidRequest(
                f"{field}[{index}] holds token id {bad}, the vocabulary has ids 0 to {size - 1}",
                param=field,
            )
        if not ids:
            raise InvalidRequest(f"{field}[{index}] has no tokens", param=field)
        encoded.append(Prompt(ids))
    return encoded


async def start_completion(
    model: TextModel, prompts: list[Prompt], options: GenerationOptions, output: Output | None = None
) -> Generation:
    """Raises:
    InvalidRequest: bad options, a bad schema, or a prompt that is too long.
    QueueFull, EngineStopped: the engine does not take it.
    """
    if output is not None:
        source = source_of(Markup(), ToolUse(), output, thinks=False, inside=False, ends=())
        assert source is not None, "an output has a grammar"
        options = replace(options, grammar=await model.grammars.compile(source, output.param))
    return Generation(model, prompts, options, prompt_field="prompt")
