"""What a Hugging Face folder says about pictures, sounds and clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ingle.contracts.media import MediaAssets, MediaKind
from ingle.errors import CheckpointError

# Our names for the tokens, and the configuration's keys for their ids (one of them really is an index).
_ID_KEYS = {
    "image": ("image_token_id", "image_token_index"),
    "boi": ("boi_token_id", "boi_token_index"),
    "eoi": ("eoi_token_id", "eoi_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
    "boa": ("boa_token_id", "boa_token_index"),
    "eoa": ("eoa_token_id", "eoa_token_index"),
    "video": ("video_token_id", "video_token_index"),
}
_FAMILIES = {"gemma4": True, "gemma4_unified": False}  # with towers?
_BUDGETS = (70, 140, 280, 560, 1120)


def media_assets(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any], processor: Mapping[str, Any]
) -> MediaAssets | None:
    """None for a family whose media we do not take.

    Raises:
        CheckpointError: a budget that the family does not have.
    """
    towers = _FAMILIES.get(str(config.get("model_type")))
    if towers is None:
        return None
    ids: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name, keys in _ID_KEYS.items():
        found = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        if found is not None:
            ids[name] = found
        text: Any = tokenizer.get(f"{name}_token")
        if isinstance(text, dict):
            text = cast("dict[str, Any]", text).get("content")
        if isinstance(text, str):
            texts[name] = text
    kinds: set[MediaKind] = set()
    if not towers or isinstance(config.get("vision_config"), dict):
        kinds |= {"image", "video"}
    if not towers or isinstance(config.get("audio_config"), dict):
        kinds.add("audio")
    return MediaAssets(
        token_ids=ids,
        token_texts=texts,
        kinds=frozenset(kinds),
        towers=towers,
        image_budget=_budget(processor, "image_processor", 280),
        frame_budget=_budget(processor, "video_processor", 70),
        max_side=_max_side(config),
    )


def _max_side(config: Mapping[str, Any]) -> int:
    vision: Any = config.get("vision_config")
    settings = cast("dict[str, Any]", vision) if isinstance(vision, dict) else {}
    for key in ("position_embedding_size", "mm_posemb_size"):
        if isinstance(settings.get(key), int):
            return settings[key]
    return 10_240


def _budget(processor: Mapping[str, Any], section: str, default: int) -> int:
    settings: Any = processor.get(section)
    value: Any = None
    if isinstance(settings, dict):
        value = cast("dict[str, Any]", settings).get("max_soft_tokens")
    if value is None:
        return default
    if value not in _BUDGETS:
        allowed = ", ".join(map(str, _BUDGETS))
        raise CheckpointError(
            f"processor_config.json: {section}.max_soft_tokens is {value}, expected one of {allowed}"
        )
    return int(value)
