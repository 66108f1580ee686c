"""The tokenizer of `tiny-gemma4`: a small BPE with byte fallback in the manner of Gemma's, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>",
    "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image>",
    "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>",
)  # fmt: skip
IDS = {text: i for i, text in enumerate(SPECIAL)}
VOCAB_SIZE = 512


def build(corpus: Iterable[str]) -> Tokenizer:
    """Spaces become a visible mark and begin the next piece; digits stand alone; unknown text falls to bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\u2581"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[0-9{}:,<>|\"\n]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    named = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=named, show_progress=False)
    )
    # Byte tokens are ordinary entries of the vocabulary, only ours are special.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] in IDS]
    return Tokenizer.from_str(json.dumps(content))


def write(folder: Path, tokenizer: Tokenizer, template: str) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
        "video_token": "<|video|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(template)
