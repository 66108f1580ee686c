"""Soft tokens in a prompt: which tokens they are, and where each block of them lies.

A template puts one placeholder where a piece of media belongs. Before encoding it becomes the block's
opening token, one soft token and the closing token (for a clip that, frame by frame, with its time
before it); after encoding the one soft token becomes as many as the block has. So text around it is
encoded as the reference does, and its length costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingle.contracts.media import Block, BlockTokens, LoadedMedia, MediaAssets, MediaKind, MediaSpec
from ingle.contracts.request import ContentSpan
from ingle.errors import InvalidRequest
from ingle.text.tokenizer import Tokenizer

_NAMES: dict[MediaKind, tuple[str, str, str]] = {
    "image": ("boi", "image", "eoi"),
    "video": ("boi", "video", "eoi"),
    "audio": ("boa", "audio", "eoa"),
}


def resolve_tokens(assets: MediaAssets, tokenizer: Tokenizer) -> MediaSpec:
    """Each token by the configuration's id first, then by its declared text if that is exactly one
    token. A kind that lacks one of its tokens is not taken."""
    tokens: dict[MediaKind, BlockTokens] = {}
    for kind in sorted(assets.kinds):
        ids = [_token_id(name, assets, tokenizer) for name in _NAMES[kind]]
        begin, soft, end = (None if i is None else tokenizer.token_bytes(i).decode() for i in ids)
        if begin and soft and end and ids[1] is not None:
            tokens[kind] = BlockTokens(begin, soft, end, ids[1])
    return MediaSpec(
        tokens=tokens,
        towers=assets.towers,
        image_budget=assets.image_budget,
        frame_budget=assets.frame_budget,
        clip_frames=assets.clip_frames,
        max_side=assets.max_side,
    )


def _token_id(name: str, assets: MediaAssets, tokenizer: Tokenizer) -> int | None:
    declared = assets.token_ids.get(name)
    if declared is not None and tokenizer.is_special(declared):
        return declared
    text = assets.token_texts.get(name)
    if text is None:
        return None
    ids = tokenizer.encode(text, special=True)
    return ids[0] if len(ids) == 1 and tokenizer.is_special(ids[0]) else None


def expand(text: str, spec: MediaSpec, media: Sequence[LoadedMedia]) -> str:
    """`text` with each placeholder written out; the k-th one of a kind is the k-th piece of that kind.

    Raises:
        InvalidRequest: the text has another number of placeholders than there are pieces.
    """
    pieces = {kind: [item for item in media if item.kind == kind] for kind in spec.tokens}
    for kind, tokens in spec.tokens.items():
        found, given = text.count(tokens.soft), len(pieces[kind])
        if found != given:
            raise InvalidRequest(
                f"the prompt has {found} places for {kind} ({tokens.soft}), the request {given} of it",
                param="messages",
            )
    order = {kind: iter(items) for kind, items in pieces.items()}
    kinds = {tokens.soft: kind for kind, tokens in spec.tokens.items()}
    pattern = "|".join(re.escape(soft) for soft in sorted(kinds, key=len, reverse=True))

    def written(found: re.Match[str]) -> str:
        blocks = next(order[kinds[found[0]]]).blocks
        return " ".join(_block(block, spec) for block in blocks)

    return re.sub(pattern, written, text) if pattern else text


def _block(block: Block, spec: MediaSpec) -> str:
    tokens = spec.tokens[block.kind]
    label = block.label + " " if block.label else ""
    return f"{label}{tokens.begin}{tokens.soft}{tokens.end}"


def fill(
    ids: Sequence[int], spec: MediaSpec, media: Sequence[LoadedMedia]
) -> tuple[list[int], tuple[ContentSpan, ...]]:
    """`ids` with each soft token repeated as its block says, and the blocks' places."""
    queues: dict[int, Iterator[Block]] = {
        tokens.soft_id: iter([b for item in media for b in item.blocks if b.kind == kind])
        for kind, tokens in spec.tokens.items()
    }
    out: list[int] = []
    spans: list[ContentSpan] = []
    for token in ids:
        if token not in queues:
            out.append(token)
            continue
        block = next(queues[token])
        start = len(out)
        out += [token] * block.soft_tokens
        spans.append(ContentSpan(start, len(out), block.digest, block))
    return out, tuple(spans)
