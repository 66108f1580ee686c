"""Weights as they come out of a checkpoint: exact codes or dense values, under one naming convention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import mlx.core as mx


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A float tensor in its checkpoint dtype (float32, float16 or bfloat16)."""

    values: mx.array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A matrix [N, K], or a stack of them, in group-affine codes: value = scale * code + bias, one pair per
    `group_size` inputs.

    `codes` is MLX's packed layout: uint32 [N, K * bits / 32], code i of a word in its bits
    [i * bits, (i + 1) * bits). `scales` and `biases` are [N, K / group_size], float32 or float16.
    """

    codes: mx.array
    scales: mx.array
    biases: mx.array
    bits: int  # 4 or 8 (and 2, 3, 5, 6 where MLX can)
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, words = self.codes.shape
        return *outer, words * 32 // self.bits


Weight: TypeAlias = Dense | Affine


def part(weight: Weight, rows: int | slice) -> Weight:
    """Those of the outermost dimension."""
    if isinstance(weight, Dense):
        return Dense(weight.values[rows])
    w = weight
    return Affine(w.codes[rows], w.scales[rows], w.biases[rows], w.bits, w.group_size)


class WeightSource(Protocol):
    """Lazy access to a checkpoint's tensors. Every file format presents the same convention:

    Hugging Face names ("model.layers.0.self_attn.q_proj.weight"), q and k rows in the half-split
    order of Hugging Face (never GGUF's interleaved order), and norm weights as the factor that is
    multiplied (Gemma's "1 + w" already added).
    """

    def names(self) -> Iterable[str]:
        """Of all that `take` reads."""
        ...

    def has(self, name: str) -> bool: ...

    def take(self, name: str) -> Weight:
        """Read one tensor. Its bytes may be released afterwards: call once per name.

        Raises:
            CheckpointError: the tensor is missing, cut short or of an unsupported type; names it.
        """
        ...

    def integers(self, name: str) -> mx.array:
        """Read one tensor of indices.

        Raises:
            CheckpointError: the tensor is missing or holds something else; names it.
        """
        ...
