"""MLX's quantisation settings in config.json: which tensors are codes, of what width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingle.errors import CheckpointError
from ingle.weights.fields import Fields

_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (16, 32, 64, 128)
_KEYS = ("bits", "group_size", "mode")


@dataclass(frozen=True, slots=True)
class CodeFormat:
    bits: int
    group_size: int


class Quantization:
    """The default format of a checkpoint and its per-layer overrides."""

    def __init__(self, default: CodeFormat | None, layers: Mapping[str, CodeFormat | None]) -> None:
        self._default, self._layers = default, layers

    def format_of(self, layer: str) -> CodeFormat | None:
        """Format of the layer's weight ("model.layers.0.mlp.up_proj"); None: dense."""
        return self._layers.get(layer, self._default)


def read_quantization(config: Mapping[str, Any], where: str, normal_name: Any) -> Quantization:
    """`normal_name` maps a checkpoint's layer name to ours.

    Raises:
        CheckpointError: a method that is not MLX's affine quantisation, or widths we cannot read.
    """
    fields = Fields(config, where)
    key = "quantization" if fields.has("quantization") else "quantization_config"
    if not fields.has(key):
        return Quantization(None, {})
    section = fields.section(key)
    if section.has("quant_method"):
        raise section.refuse("quant_method", "MLX affine quantisation, which has no quant_method")
    default = _format(section)
    layers: dict[str, CodeFormat | None] = {}
    for name, value in section.values.items():
        if name in _KEYS:
            continue
        if value is False:
            layers[normal_name(name)] = None
        elif value is True:
            layers[normal_name(name)] = default
        elif isinstance(value, dict):
            layers[normal_name(name)] = _format(section.section(name))
        else:
            raise CheckpointError(f"{section.where}: {name} is {value!r}, expected settings, true or false")
    return Quantization(default, layers)


def _format(fields: Fields) -> CodeFormat:
    if fields.text("mode", "affine") != "affine":
        raise fields.refuse("mode", "affine")
    bits, group = fields.integer("bits"), fields.integer("group_size", 64)
    if bits not in _BITS:
        raise fields.refuse("bits", ", ".join(map(str, _BITS)))
    if group not in _GROUPS:
        raise fields.refuse("group_size", ", ".join(map(str, _GROUPS)))
    return CodeFormat(bits, group)
