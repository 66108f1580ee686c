"""Build a tokenizer from GGUF metadata: byte-level BPE and SentencePiece kinds.

Pre-tokenizer patterns are the published ones of each family; a kind we do not know exactly is
refused, because a nearly right tokenizer gives quietly wrong ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ingle.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"  # SentencePiece's visible space

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """A `tokenizers.Tokenizer` with every control and user-defined token added.

    Raises:
        CheckpointError: an unknown tokenizer kind, or lists that do not fit each other.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(types, list) or len(cast("list[Any]", types)) != len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.token_type does not name the kind of each of {len(tokens)} tokens"
        )
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.tokens repeats {len(tokens) - len(vocab)} tokens")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, vocab)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, vocab, _merges_from_scores(metadata, tokens, vocab, types))
    elif kind == "gemma4":
        tokenizer = _sentencepiece(metadata, vocab, _merges(metadata))
    else:
        raise CheckpointError(f"tokenizer.ggml.model is {kind!r}; supported: gpt2, llama, gemma4")
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, t in zip(tokens, types, strict=True)
        if t in (CONTROL, UNKNOWN)
    ]
    defined = [
        AddedToken(token, special=False, normalized=False)
        for token, t in zip(tokens, types, strict=True)
        if t == USER_DEFINED
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(defined)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], vocab: dict[str, int]) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    normalizer = None
    ignore_merges = False
    if pre in ("smollm", "starcoder", "command-r", "codeshell", "refact"):
        before = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    elif pre in ("gpt-2", "gpt2"):
        before = plain
    elif pre in ("llama-bpe", "llama3", "llama-v3"):
        before = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), raw])
        ignore_merges = True
    elif pre == "qwen2":
        before = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN2), "isolated"), raw])
        normalizer = normalizers.NFC()
    else:
        raise CheckpointError(
            f"tokenizer.ggml.pre is {pre!r}; supported: smollm, starcoder, command-r, codeshell, refact, "
            "gpt-2, llama-bpe, qwen2"
        )
    model = models.BPE(vocab=vocab, merges=_merges(metadata), ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = before
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    metadata: Mapping[str, Any], vocab: dict[str, int], merges: list[tuple[str, str]]
) -> Tokenizer:
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokens = list(vocab)
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.unknown_token_id is {unknown!r}, not one of {len(tokens)} tokens"
        )
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token=tokens[unknown], byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    prefixed = has_space_prefix(metadata)
    if prefixed:
        steps.insert(0, normalizers.Prepend(_SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tail: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        tail.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(tail)
    return tokenizer


def has_space_prefix(metadata: Mapping[str, Any]) -> bool:
    """Whether a space is put before the text and taken off again (SentencePiece's dummy prefix)."""
    kind = metadata.get("tokenizer.ggml.model")
    return kind == "llama" and metadata.get("tokenizer.ggml.add_space_prefix", True) is True


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in _strings(metadata, "tokenizer.ggml.merges"):
        cut = merge.find(" ", 1)  # a part may be a space itself, never empty
        if cut < 0 or cut == len(merge) - 1:
            raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r}, not two parts")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _merges_from_scores(
    metadata: Mapping[str, Any], tokens: list[str], vocab: Mapping[str, int], types: list[int]
) -> list[tuple[str, str]]:
    """SentencePiece BPE joins the pair whose whole has the best score: rank pairs by that score."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(cast("list[Any]", scores)) != len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.scores does not hold one score for each of {len(tokens)} tokens"
        )
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score, kind in zip(tokens, cast("list[float]", scores), types, strict=True):
        if kind != NORMAL or len(token) < 2:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-score, vocab[left], vocab[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values:
        raise CheckpointError(f"{key} is missing or empty")
    for value in cast("list[Any]", values):
        if not isinstance(value, str):
            raise CheckpointError(f"{key} holds {value!r}, expected strings")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise CheckpointError(f"{key} holds {value!r}, which is not valid UTF-8") from None
    return cast("list[str]", values)
