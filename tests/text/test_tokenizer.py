"""Ids equal the reference, bytes survive, and decoding in steps equals decoding at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.contracts.text_assets import TextAssets
from ingle.errors import CheckpointError
from ingle.text.detokenizer import IncrementalDetokenizer
from ingle.text.tokenizer import Tokenizer
from ingle.weights.gguf import GGUFFile
from ingle.weights.gguf_config import text_assets
from support.tiny_tokenizer import BOS, END, VOCAB_SIZE, tiny_assets

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.load(tiny_assets())


@pytest.fixture(scope="module")
def smollm(default_model_path: Path) -> Tokenizer:
    return Tokenizer.load(text_assets(GGUFFile(default_model_path).metadata, "smollm2"))


def sentencepiece_assets(**changes: object) -> TextAssets:
    """A SentencePiece vocabulary with byte fallback, scores best for the longest pieces."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "▁ab",
        "  ",
    ]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 1, 4]
    scores = [0.0, 0.0, 0.0, *[0.0] * 256, -9.0, -8.0, -8.0, -3.0, -2.0, -1.0, 0.0]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }
    return TextAssets(gguf=metadata, bos_token_id=1, eos_token_ids=(2,), add_bos=True)


@pytest.mark.model
def test_smollm2_ids_equal_the_reference(smollm: Tokenizer) -> None:
    cases = json.loads((GOLDENS / "smollm2.json").read_text())
    assert len(cases) >= 100
    for case in cases:
        ids = smollm.encode(case["text"], special=True)
        assert ids == case["ids"], case["text"]
        assert smollm.decode(ids, skip_special=False) == case["text"]


# The real vocabulary has no token for some bytes: those of planes 4 and up, and a few control characters.
writable = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])


@pytest.mark.model
@given(text=st.text(writable, max_size=40))
def test_smollm2_keeps_every_text(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode(text, special=False)
    assert smollm.decode(ids) == text
    assert b"".join(map(smollm.token_bytes, ids)) == text.encode()
    assert not any(map(smollm.is_special, ids))


@given(st.lists(st.integers(0, VOCAB_SIZE + 3), max_size=30), st.booleans())
def test_steps_join_to_the_whole(tiny: Tokenizer, ids: list[int], skip: bool) -> None:
    steps = IncrementalDetokenizer(tiny, skip_special=skip)
    joined = "".join(map(steps.push, ids)) + steps.flush()
    assert joined == tiny.decode(ids, skip_special=skip)


@pytest.mark.parametrize("parts", [[2, 2], [1, 1, 1, 1], [3, 1], [1, 3]])
def test_a_split_emoji_never_shows_halves(tiny: Tokenizer, parts: list[int]) -> None:
    """Each group of bytes arrives as tokens one by one; nothing is shown until the character is whole."""
    data = "🤗".encode()
    assert sum(parts) == len(data)
    steps = IncrementalDetokenizer(tiny)
    shown = [steps.push(byte) for byte in data]
    assert shown == ["", "", "", "🤗"]
    assert steps.push(ord("!")) == "!", "deltas go on after the split character"
    assert steps.flush() == ""


def test_a_cut_character_at_the_end_is_flushed_once(tiny: Tokenizer) -> None:
    steps = IncrementalDetokenizer(tiny)
    assert "".join(map(steps.push, "語".encode()[:2])) == ""
    assert steps.flush() == "\ufffd"
    assert steps.flush() == ""


def test_special_tokens_are_recognised_only_when_asked(tiny: Tokenizer) -> None:
    assert tiny.encode("a<|end|>", special=True) == [97, END]
    assert tiny.encode("a<|end|>", special=False) == [97, *b"<|end|>"]
    assert tiny.decode([97, END]) == "a"
    assert tiny.decode([97, END], skip_special=False) == "a<|end|>"
    assert tiny.is_special(END) and not tiny.is_special(97)
    assert tiny.token_id("<|end|>") == END and tiny.token_id("nope") is None


def test_lone_surrogates_become_replacement_characters(tiny: Tokenizer) -> None:
    assert tiny.decode(tiny.encode("a\ud800b", special=True)) == "a\ufffdb"


def test_unused_ids_have_no_bytes(tiny: Tokenizer) -> None:
    assert tiny.token_bytes(10**6) == b"" and tiny.token_bytes(-1) == b""


def test_sentencepiece_prefix_bytes_and_bos() -> None:
    tokenizer = Tokenizer.load(sentencepiece_assets())
    assert tokenizer.encode("ab a", special=False) == [264, 262]
    assert tokenizer.decode([264, 262]) == "ab a"
    emoji = tokenizer.encode("é", special=False)
    assert emoji == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(emoji) == "é"
    assert tokenizer.prompt_ids("ab") == [1, 264]
    steps = IncrementalDetokenizer(tokenizer)
    assert [steps.push(i) for i in (264, 262, *emoji[1:])] == ["ab", " a", "", "é"]


def test_sentencepiece_without_prefix_keeps_spaces() -> None:
    tokenizer = Tokenizer.load(sentencepiece_assets(**{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.encode("ab", special=False) == [263]
    assert tokenizer.decode([262, 263]) == " aab"
    assert tokenizer.encode("a  b", special=False) == [260, 265, 261], "user-defined pieces go first"


def test_bos_is_never_doubled() -> None:
    tokenizer = Tokenizer.load(sentencepiece_assets())
    assert tokenizer.prompt_ids("<s>").count(1) == 1
    plain = Tokenizer.load(tiny_assets())
    assert plain.prompt_ids("hi") == [104, 105]
    assert plain.prompt_ids("<|bos|>hi") == [BOS, 104, 105]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "wordpiece"}, "'wordpiece'; supported"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "mystery"}, "'mystery'; supported"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "repeats 1 tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "expected strings"),
        ({"tokenizer.ggml.tokens": []}, "missing or empty"),
        ({"tokenizer.ggml.token_type": [1]}, "does not name the kind"),
        ({"tokenizer.ggml.scores": [1.0]}, "one score for each"),
        ({"tokenizer.ggml.unknown_token_id": 10**9}, "unknown_token_id"),
        ({"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": ["ab"]}, "not two parts"),
    ],
)
def test_broken_metadata_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(sentencepiece_assets(**changes))


def test_broken_tokenizer_json_is_refused() -> None:
    for data in (b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "Nope"}}'):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            Tokenizer.load(TextAssets(tokenizer_json=data))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        Tokenizer.load(TextAssets())
