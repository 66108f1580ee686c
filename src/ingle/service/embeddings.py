"""Texts to vectors, on the same engine as everything else."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingle.contracts.request import Embedded, Finished, Request, SamplingParams
from ingle.errors import ContextOverflow, InvalidRequest
from ingle.service.completions import encode_prompts
from ingle.service.models import TextModel
from ingle.service.streams import own_end

_AT_ONCE = 16  # inputs of one request in the engine: the others wait here


@dataclass(frozen=True, slots=True)
class Embeddings:
    vectors: list[NDArray[np.float32]]  # [dimensions] each, of length 1
    tokens: int


async def embed(
    model: TextModel,
    inputs: Sequence[str | Sequence[int]],
    *,
    dimensions: int | None = None,
    priority: int = 0,
) -> Embeddings:
    """Each input as a vector of length 1. `dimensions` keeps the first ones, for models trained so
    (Kusupati et al., 2022, "Matryoshka representation learning").

    Raises:
        InvalidRequest: the model makes none, or too short ones; an input is empty or too long.
        QueueFull, EngineStopped: the engine does not take it.
    """
    if model.pooling is None:
        raise InvalidRequest(
            f"model {model.name!r} makes no embeddings; --pooling mean or last lets it", param="model"
        )
    prompts = await encode_prompts(model, inputs, field="input")
    context = model.engine.info.context_length
    for index, prompt in enumerate(prompts):
        if len(prompt.ids) >= context:
            raise ContextOverflow(
                f"input[{index}] has {len(prompt.ids)} tokens, the limit is {context - 1}", param="input"
            )
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(ids: Sequence[int]) -> NDArray[np.float32]:
        async with turns:
            return _normalised(await _pooled(model, ids, priority), dimensions)

    tasks = [asyncio.create_task(one(prompt.ids)) for prompt in prompts]
    try:
        vectors = list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
    return Embeddings(vectors, sum(len(prompt.ids) for prompt in prompts))


async def _pooled(model: TextModel, ids: Sequence[int], priority: int) -> NDArray[np.float32]:
    request = Request(
        id=uuid.uuid4().hex,
        prompt=tuple(ids),
        sampling=SamplingParams(max_tokens=1),
        priority=priority,
        pooling=model.pooling,
        cache_key=None,  # hidden states of cached tokens are not kept
    )
    stream = model.bridges.here().open(request)
    values: NDArray[np.float32] | None = None
    ended: Finished | None = None
    try:
        while ended is None:
            for event in await stream.next():
                if isinstance(event, Embedded):
                    values = event.values
                elif isinstance(event, Finished):
                    ended = event
    finally:
        stream.abandon("nobody listens any more")
    own_end(ended)
    assert values is not None, "a request with pooling that ends well has a vector"
    return values


def _normalised(values: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    if dimensions is not None:
        if dimensions > len(values):
            raise InvalidRequest(
                f"dimensions is {dimensions}, the model's vectors have {len(values)}", param="dimensions"
            )
        values = values[:dimensions]
    length = float(np.linalg.norm(values.astype(np.float64)))
    return values if length == 0 else (values / length).astype(np.float32)
