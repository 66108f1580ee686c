"""From a checkpoint on disk to a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ingle.config import EngineConfig
from ingle.contracts.graph import ModelGraph
from ingle.contracts.model_config import ModelConfig
from ingle.contracts.text_assets import TextAssets
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.kernels import native, ops
from ingle.models.registry import build_graph
from ingle.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that answers. `engine.close()` ends it."""

    name: str
    engine: Engine
    text: TextAssets | None  # None: the checkpoint brings no tokenizer
    config: ModelConfig
    description: str  # for people: file format and back end


def load(
    path: Path,
    *,
    name: str,
    config: EngineConfig | None = None,
    threads: int | None = None,
    isa: str | None = None,
) -> Loaded:
    """Open the checkpoint at `path` and start its engine.

    `threads` and `isa` choose how the native CPU kernels run; None leaves it to the machine.

    Raises:
        CheckpointError: the files are missing, broken or not supported.
        ConfigError: a setting is out of range.
    """
    config = config or EngineConfig()
    native.configure(threads=threads, isa=isa)
    ops.warn_if_plain()
    checkpoint = open_checkpoint(path)
    dtype = _dtype(config.dtype)
    context = min(checkpoint.config.context_length, config.context_length or 2**31)
    backend = ops.describe()
    engine = Engine(
        lambda: build_graph(checkpoint.config, checkpoint.weights, dtype),
        EngineInfo(vocab_size=checkpoint.config.vocab_size, context_length=context, backend=backend),
        config,
        row_invariant=ops.row_invariant(dtype),
    )
    return Loaded(name, engine, checkpoint.text, checkpoint.config, f"{checkpoint.description}, {backend}")


def load_graph(path: Path, dtype: str = "auto") -> tuple[ModelGraph, ModelConfig]:
    """The bare graph of a checkpoint, on the calling thread: for measurements and parity tests."""
    checkpoint = open_checkpoint(path)
    return build_graph(checkpoint.config, checkpoint.weights, _dtype(dtype)), checkpoint.config


def _dtype(name: str) -> mx.Dtype:
    if name == "auto":
        return ops.default_dtype()
    return {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}[name]
