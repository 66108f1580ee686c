"""Tokenizer and template files of a Hugging Face folder to text assets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ingle.contracts.request import Pooling
from ingle.contracts.text_assets import TextAssets
from ingle.errors import CheckpointError
from ingle.weights.fields import Fields
from ingle.weights.hf_media import media_assets
from ingle.weights.safetensors import read_json

_MAX_TOKENIZER_BYTES = 256 * 1024 * 1024
_MAX_TEMPLATE_BYTES = 1024 * 1024
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def text_assets(
    folder: Path, *, bos_token_id: int | None, eos_token_ids: tuple[int, ...], generation: Mapping[str, Any]
) -> TextAssets:
    """Raises CheckpointError: tokenizer.json is missing, too large or of wrong types."""
    path = folder / "tokenizer.json"
    tokenizer = _read(path, _MAX_TOKENIZER_BYTES)
    settings = optional_json(folder / "tokenizer_config.json")
    fields = Fields(settings, str(folder / "tokenizer_config.json"))
    special: dict[str, str] = {}
    for name in _SPECIAL:
        value: Any = settings.get(name)
        if isinstance(value, dict):  # an added token written out with its flags
            value = cast("dict[str, Any]", value).get("content")
        if isinstance(value, str):
            special[name] = value
    config = optional_json(folder / "config.json")
    values = Fields(generation, str(folder / "generation_config.json"))
    return TextAssets(
        tokenizer_json=tokenizer,
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        chat_template=_template(folder, fields),
        special_tokens=special,
        add_bos=fields.boolean("add_bos_token", False),
        media=media_assets(config, settings, optional_json(folder / "processor_config.json")),
        pooling=_pooling(folder),
        sampling_defaults={name: values.number(name) for name in _DEFAULTS if values.has(name)},
    )


def _pooling(folder: Path) -> Pooling | None:
    """What sentence-transformers' files say: a pooling, perhaps a normalisation, and nothing else behind it.

    None: there are no such files, or they ask for what is not built.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules: Any = json.loads(_read(path, _MAX_TEMPLATE_BYTES))
        kinds = [str(entry["type"]).rsplit(".", 1)[-1] for entry in modules]
        settings = read_json(folder / modules[kinds.index("Pooling")]["path"] / "config.json")
    except (ValueError, TypeError, KeyError):
        raise CheckpointError(f"{path}: no list of modules with a Pooling among them") from None
    if not set(kinds) <= {"Transformer", "Pooling", "Normalize"}:
        return None
    if settings.get("pooling_mode_mean_tokens") is True:
        return "mean"
    return "last" if settings.get("pooling_mode_lasttoken") is True else None


def _template(folder: Path, fields: Fields) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read(path, _MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    template: Any = fields.values.get("chat_template")
    if isinstance(template, list):  # named templates
        named: dict[Any, Any] = {
            entry.get("name"): entry.get("template")
            for entry in cast("list[Any]", template)
            if isinstance(entry, dict)
        }
        template = named.get("default")
    if template is None or isinstance(template, str):
        return template
    raise CheckpointError(f"{fields.where}: chat_template is not a string")


def _read(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(f"{path}: {size} bytes, the limit is {limit}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
