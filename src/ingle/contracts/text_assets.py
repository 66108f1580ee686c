"""What a checkpoint says about text, as plain data: the raw material of a tokenizer and a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingle.contracts.media import MediaAssets
from ingle.contracts.request import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """Exactly one of `tokenizer_json` and `gguf` is set.

    `gguf` holds the file's `tokenizer.*` metadata under their own names (lists as Python lists).
    """

    tokenizer_json: bytes | None = None
    gguf: Mapping[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # every id that ends a turn, from all configuration files
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])  # "bos_token" -> "<s>", ...
    add_bos: bool = False  # raw prompts (not chat templates) start with bos
    sampling_defaults: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # generation_config: temperature, top_p, ...
    media: MediaAssets | None = None  # None: text only
    pooling: Pooling | None = None  # of an embedding model
