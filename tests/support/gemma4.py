"""Prompts and media of the Gemma 4 goldens, made from seeds: the golden script and the tests share them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ingle.contracts.media import Block, MediaKind

VOCAB, WINDOW = 96, 16
IDS = {
    "boi_token_id": 80, "eoi_token_id": 81, "image_token_id": 82, "audio_token_id": 83, "boa_token_id": 84,
    "eoa_token_index": 85, "video_token_id": 86,
}  # fmt: skip
SIZES = {"short": 5, "long": 40}  # of text prompts
CASES = ("image", "wide", "images", "video", "audio", "mixed")
_TYPES = {"image": 1, "video": 2, "audio": 3}


@dataclass(frozen=True, slots=True)
class Case:
    ids: list[int]
    types: list[int]  # of each token: 0 text, 1 image, 2 video, 3 audio
    blocks: list[Block]
    spans: list[tuple[int, int]]

    @property
    def kinds(self) -> set[MediaKind]:
        return {block.kind for block in self.blocks}


def prompt(size: int, seed: int = 7) -> list[int]:
    return np.random.default_rng([seed, size]).integers(4, 80, size).tolist()


def case(name: str, flat: bool) -> Case:
    """`flat`: for the model without towers. `wide` has more soft tokens than the window."""
    blocks: list[Block] = []
    if name in ("image", "mixed"):
        blocks.append(picture("image", 3, 2, flat, 1))
    if name == "wide":
        blocks.append(picture("image", 5, 4, flat, 2))
    if name == "images":
        blocks += [picture("image", 2, 3, flat, 3), picture("image", 3, 2, flat, 4)]
    if name == "video":
        blocks += [picture("video", 2, 2, flat, 10 + i) for i in range(3)]
    if name in ("audio", "mixed"):
        blocks.append(sound(flat))
    ids, spans = prompt(4, 1), []
    for number, block in enumerate(blocks):
        begin, soft, end = ("boa", "audio", "eoa") if block.kind == "audio" else ("boi", block.kind, "eoi")
        ids.append(IDS[f"{begin}_token_id"])
        spans.append((len(ids), len(ids) + block.soft_tokens))
        ids += [IDS[f"{soft}_token_id"]] * block.soft_tokens
        ids += [IDS["eoa_token_index" if end == "eoa" else "eoi_token_id"], *prompt(3, 20 + number)]
    ids += prompt(6, 2)
    types = [0] * len(ids)
    for (start, stop), block in zip(spans, blocks, strict=True):
        types[start:stop] = [_TYPES[block.kind]] * (stop - start)
    return Case(ids, types, blocks, spans)


def picture(kind: MediaKind, columns: int, rows: int, flat: bool, seed: int) -> Block:
    """Of columns x rows soft tokens."""
    side, values = (1, 6912) if flat else (3, 768)
    y, x = np.divmod(np.arange(columns * rows * side * side, dtype=np.int32), np.int32(columns * side))
    pixels = np.random.default_rng(seed).integers(0, 256, (len(x), values))
    patches = (pixels / 255).astype(np.float32)
    return _block(kind, columns * rows, {"patches": patches, "positions": np.stack([x, y], axis=1)})


def sound(flat: bool) -> Block:
    rng = np.random.default_rng(5)
    if flat:
        return _block("audio", 9, {"raw": rng.normal(0, 0.3, (9, 640)).astype(np.float32)})
    mel = rng.normal(-3, 2, (107, 128)).astype(np.float32)
    mel[105:] = 0  # frames that are not real
    return _block("audio", 27, {"mel": mel})


def _block(kind: MediaKind, soft_tokens: int, arrays: dict[str, np.ndarray]) -> Block:
    digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays.values())).digest()
    return Block(kind, soft_tokens, digest, arrays)
