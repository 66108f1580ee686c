"""Text to token ids and back, whatever file the tokenizer came from."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import tokenizers

from ingle.contracts.text_assets import TextAssets
from ingle.errors import CheckpointError
from ingle.text import gguf_tokenizer

_SPACE = "\u2581"
_SURROGATES = re.compile("[\ud800-\udfff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, the rest is moved to 256 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(moved)}


class Tokenizer:
    """Thread-safe. Decoding works from a table of each token's raw bytes."""

    def __init__(
        self, backend: tokenizers.Tokenizer, assets: TextAssets, *, byte_level: bool, strips_space: bool
    ) -> None:
        self._backend, self._assets = backend, assets
        self._lock = threading.Lock()  # the backend's handling of special tokens is a setting of its own
        self.strips_space = strips_space  # the first token of a text loses one leading space
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._ids = backend.get_vocab(with_added_tokens=True)
        size = max(self._ids.values(), default=-1) + 1
        self._bytes: list[bytes] = [b""] * size
        alphabet = _byte_alphabet()
        for text, index in self._ids.items():
            if index in added:
                self._bytes[index] = text.encode()
            elif byte_level:
                known = [alphabet.get(c) for c in text]
                # A few vocabularies hold entries outside the alphabet: they stand for their own text.
                self._bytes[index] = (
                    text.encode() if None in known else bytes(b for b in known if b is not None)
                )
            elif (found := _BYTE_TOKEN.fullmatch(text)) is not None:
                self._bytes[index] = bytes([int(found[1], 16)])
            else:
                self._bytes[index] = text.replace(_SPACE, " ").encode()
        texts = sorted((added[i].content for i in self._special), key=len, reverse=True)
        self._special_texts = tuple(t for t in texts if t)

    @classmethod
    def load(cls, assets: TextAssets) -> Tokenizer:
        """Raises CheckpointError: the assets are broken or of a kind we do not read exactly."""
        if assets.gguf is not None:
            kind = assets.gguf.get("tokenizer.ggml.model")
            return cls(
                gguf_tokenizer.build_tokenizer(assets.gguf),
                assets,
                byte_level=kind == "gpt2",
                strips_space=gguf_tokenizer.has_space_prefix(assets.gguf),
            )
        if assets.tokenizer_json is None:
            raise CheckpointError("the checkpoint has no tokenizer")
        try:
            content = cast("dict[str, Any]", json.loads(assets.tokenizer_json))
            backend = tokenizers.Tokenizer.from_str(assets.tokenizer_json.decode())
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"tokenizer.json cannot be read: {error}") from None
        # Padding and truncation belong to training; they would silently change prompts.
        backend.no_padding()
        backend.no_truncation()
        steps = [*_kinds(content.get("decoder")), *_kinds(content.get("pre_tokenizer"))]
        return cls(
            backend,
            assets,
            byte_level=any(step.get("type") == "ByteLevel" for step in steps),
            strips_space=_strips_space(content),
        )

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by the vocabulary's own spelling."""
        return self._ids

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._bytes)

    @property
    def bos_token_id(self) -> int | None:
        return self._assets.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._assets.eos_token_ids

    @cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Matches the texts of special tokens, the longest first; None when there are none.

        Texts of one character are left out: no vocabulary has them, and they cannot be broken up.
        """
        texts = [re.escape(text) for text in self._special_texts if len(text) > 1]
        return re.compile("|".join(texts)) if texts else None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`, without bos or eos. `special`: texts of special tokens become those tokens;
        otherwise they are ordinary text."""
        with self._lock:
            self._backend.encode_special_tokens = not special
            return self._backend.encode(_sound(text), add_special_tokens=False).ids

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a raw prompt: special tokens are recognised, bos is put first where the model wants it."""
        with self._lock:
            self._backend.encode_special_tokens = False
            ids = self._backend.encode(_sound(text), add_special_tokens=True).ids
        bos = self.bos_token_id
        if bos is None:
            return ids
        if self._assets.add_bos and ids[:1] != [bos]:
            return [bos, *ids]
        return ids[1:] if ids[:2] == [bos, bos] else ids  # the prompt brought its own

    def token_bytes(self, token_id: int) -> bytes:
        """Raw bytes of a token, which need not be whole characters; empty for unused ids."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def run_bytes(self, token_ids: Sequence[int], *, skip_special: bool) -> bytes:
        """Raw bytes of ids, joined."""
        kept = [i for i in token_ids if i not in self._special] if skip_special else token_ids
        return b"".join(map(self.token_bytes, kept))

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that form no character become U+FFFD."""
        data = self.run_bytes(ids, skip_special=skip_special)
        if self.strips_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")


def _sound(text: str) -> str:
    """JSON can smuggle in lone surrogates, which no encoder takes: they become U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def _kinds(step: Any) -> list[dict[str, Any]]:
    """A pipeline step and, for sequences, the steps inside it."""
    if not isinstance(step, dict):
        return []
    step = cast("dict[str, Any]", step)
    inner = step.get("decoders") or step.get("pretokenizers") or []
    return [step, *(found for part in inner for found in _kinds(part))]


def _strips_space(content: dict[str, Any]) -> bool:
    for step in _kinds(content.get("decoder")):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start") == 1:
            return True
        if step.get("type") == "Metaspace":
            never = step.get("prepend_scheme") == "never" or step.get("add_prefix_space") is False
            return not never
    return False
