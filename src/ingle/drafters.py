"""Which draft source an engine gets: from the name or checkpoint of a drafter to what the engine builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import mlx.core as mx

from ingle.contracts.graph import ModelGraph
from ingle.contracts.text_assets import TextAssets
from ingle.errors import ConfigError
from ingle.kernels import ops
from ingle.models.gemma4_assistant import Gemma4Assistant, check_pair
from ingle.models.registry import build_graph
from ingle.speculative.assistant import AssistantSource
from ingle.speculative.draft_rows import DraftModelSource
from ingle.speculative.ngram import NgramSource
from ingle.speculative.source import DraftSource
from ingle.text.tokenizer import Tokenizer
from ingle.weights.checkpoint import Checkpoint, open_checkpoint

DrafterChoice: TypeAlias = Path | Literal["ngram", "none"]


@dataclass(frozen=True, slots=True)
class Drafter:
    """`make` runs on the engine's thread; None: no drafts."""

    about: str  # for people: "n-gram look-up", "assistant tiny-gemma4-assistant, n-gram look-up", "no drafts"
    make: Callable[[ModelGraph], Sequence[DraftSource]] | None


def choose_drafter(choice: DrafterChoice, target: Checkpoint, dtype: mx.Dtype) -> Drafter:
    """With a model or an assistant rows that repeat themselves still look up.

    Raises:
        CheckpointError: the drafter's files are missing, broken or not supported.
        ConfigError: it does not fit the target.
    """
    if choice == "none":
        return Drafter("no drafts", None)
    if choice == "ngram":
        return Drafter("n-gram look-up", lambda graph: [NgramSource()])
    drafter = open_checkpoint(choice)
    if drafter.config.assistant is not None:
        check_pair(drafter.config, target.config)

        def assistant(graph: ModelGraph) -> Sequence[DraftSource]:
            own = Gemma4Assistant(drafter.config, drafter.weights, dtype, target.config)
            return AssistantSource(own, graph), NgramSource()

        return Drafter(f"assistant {choice.stem}, n-gram look-up", assistant)
    _check_vocabulary(drafter, target)

    def model(graph: ModelGraph) -> Sequence[DraftSource]:
        own = build_graph(drafter.config, drafter.weights, dtype)
        return DraftModelSource(own, row_invariant=ops.row_invariant(dtype)), NgramSource()

    return Drafter(f"draft model {choice.stem}, n-gram look-up", model)


def _check_vocabulary(drafter: Checkpoint, target: Checkpoint) -> None:
    """Drafts are token ids: they must mean the same to both."""
    sizes = drafter.config.vocab_size, target.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(f"the draft model's vocabulary has {sizes[0]} tokens, its target's {sizes[1]}")
    mine, other = _vocabulary(drafter.text), _vocabulary(target.text)
    if mine is not None and other is not None and mine != other:
        token = min(set(mine.items()) ^ set(other.items()))[0]
        raise ConfigError(
            f"the draft model has another vocabulary than its target: token {token!r} is number "
            f"{mine.get(token)} there and {other.get(token)} here"
        )


def _vocabulary(assets: TextAssets | None) -> dict[str, int] | None:
    return None if assets is None else Tokenizer.load(assets).vocabulary
