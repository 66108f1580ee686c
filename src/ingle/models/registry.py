"""Which builder makes the graph of which model family: a table one can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import mlx.core as mx

from ingle.contracts.graph import ModelGraph
from ingle.contracts.model_config import ModelConfig
from ingle.contracts.weights import WeightSource
from ingle.errors import CheckpointError
from ingle.models import gemma3, gemma4, llama, qwen3

Builder: TypeAlias = Callable[[ModelConfig, WeightSource, mx.Dtype], ModelGraph]

FAMILIES: Mapping[str, Builder] = {
    "llama": llama.build,
    "gemma3": gemma3.build,
    "gemma4": gemma4.build,
    "qwen3": qwen3.build,
}


def build_graph(config: ModelConfig, source: WeightSource, dtype: mx.Dtype) -> ModelGraph:
    """Raises:
    CheckpointError: no builder knows this family.
    """
    if config.assistant is not None:
        raise CheckpointError(
            "this is an assistant: it drafts for the model it was trained with, and says nothing alone"
        )
    builder = FAMILIES.get(config.family)
    if builder is None:
        raise CheckpointError(
            f"model family {config.family!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    return builder(config, source, dtype)
