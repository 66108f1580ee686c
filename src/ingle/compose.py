"""From a checkpoint on disk to a running engine."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ingle.cache.state import itemsize
from ingle.config import EngineConfig
from ingle.contracts.cache import StateLayout
from ingle.contracts.graph import ModelGraph
from ingle.contracts.model_config import ModelConfig
from ingle.contracts.text_assets import TextAssets
from ingle.contracts.weights import Weight, part
from ingle.drafters import DrafterChoice, choose_drafter
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.engine.memory import RowMemory, available_bytes
from ingle.kernels import native, ops
from ingle.kernels.packing import pack_linear
from ingle.models.decoder import layout_of, step_bytes
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
    drafter: DrafterChoice = "ngram",
    threads: int | None = None,
    isa: str | None = None,
) -> Loaded:
    """Open the checkpoint at `path` and start its engine, with what proposes drafts for it.

    `threads` and `isa` choose how the native CPU kernels run; None leaves it to the machine.

    Raises:
        CheckpointError: the files are missing, broken or not supported.
        ConfigError: a setting is out of range, or the drafter does not fit the model.
    """
    config = config or EngineConfig()
    native.configure(threads=threads, isa=isa)
    ops.warn_if_plain()
    checkpoint = open_checkpoint(path)
    dtype = _dtype(config.dtype)
    context = min(checkpoint.config.context_length, config.context_length or 2**31)
    backend = ops.describe()
    drafts = choose_drafter(drafter, checkpoint, dtype)
    engine = Engine(
        lambda: build_graph(checkpoint.config, checkpoint.weights, dtype),
        EngineInfo(
            vocab_size=checkpoint.config.vocab_size,
            context_length=context,
            backend=backend,
            identity=_identity(path, dtype),
            takes_media=checkpoint.config.encoders is not None,
            drafts=drafts.about,
        ),
        config,
        row_invariant=ops.row_invariant(dtype),
        drafts=drafts.make,
    )
    return Loaded(name, engine, checkpoint.text, checkpoint.config, f"{checkpoint.description}, {backend}")


def load_graph(path: Path, dtype: str = "auto") -> tuple[ModelGraph, ModelConfig]:
    """The bare graph of a checkpoint, on the calling thread: for measurements and parity tests."""
    checkpoint = open_checkpoint(path)
    return build_graph(checkpoint.config, checkpoint.weights, _dtype(dtype)), checkpoint.config


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that a model takes, by the same sums that admission uses."""

    description: str
    context_length: int  # the model's own
    weights: int
    row: int  # state of one sequence
    kinds: tuple[tuple[str, int, int], ...]  # of it: ("full" or "sliding 512", layers, bytes)
    transients: int  # of the largest step
    total: int  # with all sequences
    available: int | None  # on this machine, now; None where it does not say


def fit(path: Path, *, tokens: int, rows: int, config: EngineConfig | None = None) -> Fit:
    """What `rows` sequences of `tokens` tokens need. Reads the weights one by one, and keeps none.

    Raises:
        CheckpointError: the files are missing, broken or not supported.
    """
    config = config or EngineConfig()
    checkpoint, dtype = open_checkpoint(path), _dtype(config.dtype)
    weights = 0
    for name in checkpoint.weights.names():
        weights += _packed_bytes(checkpoint.weights.take(name), dtype)
        mx.clear_cache()
    layout = layout_of(checkpoint.config, itemsize(dtype))
    kinds: list[tuple[str, int, int]] = []
    for kind in layout.kinds:
        alone = RowMemory(StateLayout((kind,), (), (), layout.itemsize))
        name = "full" if kind.retention.window is None else f"sliding {kind.retention.window}"
        kinds.append((name, kind.layers, alone.most(tokens, config.window_tokens)))
    row = RowMemory(layout).most(tokens, config.window_tokens)
    transients = step_bytes(checkpoint.config, config.window_tokens + rows, rows)
    return Fit(
        checkpoint.description,
        checkpoint.config.context_length,
        weights,
        row,
        tuple(kinds),
        transients,
        weights + rows * row + transients,
        available_bytes(),
    )


def _packed_bytes(weight: Weight, dtype: mx.Dtype) -> int:
    """What a tensor takes once it is read: matrices and stacks of them in the form of products."""
    if len(weight.shape) == 2:
        return pack_linear(weight, dtype).nbytes
    if len(weight.shape) == 3:
        return sum(pack_linear(part(weight, i), dtype).nbytes for i in range(weight.shape[0]))
    return 4 * math.prod(weight.shape)


def _identity(path: Path, dtype: mx.Dtype) -> str:
    """A digest of what decides the bits of KV: the checkpoint's files and the arithmetic in use.

    Files count by name, size and time of change: reading them whole would cost more than it saves.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    parts = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files if f.is_file()]
    arithmetic = native.cpu.isa() if ops.uses_native(dtype) else ops.describe()
    return hashlib.sha256("\n".join([*parts, arithmetic, str(dtype)]).encode()).hexdigest()


def _dtype(name: str) -> mx.Dtype:
    if name == "auto":
        return ops.default_dtype()
    return {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}[name]
