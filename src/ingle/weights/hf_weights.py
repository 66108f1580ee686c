"""A folder of safetensors as a weight source: one naming, effective norms, MLX codes."""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx

from ingle.contracts.weights import Affine, Dense, Weight
from ingle.errors import CheckpointError
from ingle.weights.quantization import CodeFormat, Quantization
from ingle.weights.safetensors import SafetensorsFolder

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.")
_ENCODERS = tuple(
    f"model.{part}."
    for part in ("vision_tower", "embed_vision", "vision_embedder", "audio_tower", "embed_audio")
)
_FLOATS = ("F32", "F16", "BF16", "F64")
_INTEGERS = ("I32", "I64")


def normal_name(name: str) -> str:
    """Our name of a checkpoint's tensor or layer: parts of wrapped models lose their wrapper."""
    if name.startswith(_ENCODERS):
        return name.removeprefix("model.")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return rest if rest.startswith(("lm_head", "model.")) else f"model.{rest}"
    return name


class HFWeights:
    """See `contracts.weights.WeightSource`. `norms_plus_one`: Gemma stores w and multiplies by 1 + w."""

    def __init__(
        self, folder: SafetensorsFolder, quantization: Quantization, *, norms_plus_one: bool
    ) -> None:
        self._folder, self._quantization, self._plus_one = folder, quantization, norms_plus_one
        self._stored = {normal_name(name): name for name in folder.names()}

    def names(self) -> Iterable[str]:
        return [ours for ours, stored in self._stored.items() if self._folder.dtype(stored) not in _INTEGERS]

    def has(self, name: str) -> bool:
        return name in self._stored

    def take(self, name: str) -> Weight:
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and self.has(f"{layer}.scales"):
            return self._codes(layer, self._quantization.format_of(layer))
        stored = self._stored.get(name)
        if stored is None:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint")
        values = self._folder.read(stored)
        if self._folder.dtype(stored) not in _FLOATS:
            raise CheckpointError(
                f"tensor {stored!r} holds {self._folder.dtype(stored)}, expected one of {', '.join(_FLOATS)}"
            )
        if self._plus_one and layer.endswith("norm"):
            values = values.astype(mx.float32) + 1.0
        return Dense(values)

    def integers(self, name: str) -> mx.array:
        stored = self._stored.get(name)
        if stored is None:
            raise CheckpointError(f"tensor {name!r} is missing from the checkpoint")
        if (kind := self._folder.dtype(stored)) not in _INTEGERS:
            raise CheckpointError(f"tensor {stored!r} holds {kind}, expected one of {', '.join(_INTEGERS)}")
        return self._folder.read(stored)

    def _codes(self, layer: str, form: CodeFormat | None) -> Affine:
        if form is None:
            raise CheckpointError(f"{layer!r} has scales, but config.json says nothing of its quantisation")
        codes, scales, biases = (
            self._folder.read(self._stored_part(layer, part)) for part in ("weight", "scales", "biases")
        )
        groups_words = form.group_size * form.bits / 32  # words of one group
        if (
            codes.dtype != mx.uint32
            or codes.ndim not in (2, 3)
            or scales.shape != biases.shape
            or tuple(scales.shape) != (*codes.shape[:-1], codes.shape[-1] / groups_words)
        ):
            raise CheckpointError(
                f"{layer!r}: codes {codes.dtype} {codes.shape} and scales {scales.shape}, biases "
                f"{biases.shape} do not fit {form.bits} bits in groups of {form.group_size}"
            )
        return Affine(codes, _readable(scales), _readable(biases), form.bits, form.group_size)

    def _stored_part(self, layer: str, part: str) -> str:
        stored = self._stored.get(f"{layer}.{part}")
        if stored is None:
            raise CheckpointError(f"tensor {f'{layer}.{part}'!r} is missing from the checkpoint")
        return stored


def _readable(values: mx.array) -> mx.array:
    """bfloat16 scales widen to float32: kernels read float16 and float32."""
    return values.astype(mx.float32) if values.dtype == mx.bfloat16 else values
