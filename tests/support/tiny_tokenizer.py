"""A byte-level tokenizer whose ids 0..255 are the bytes themselves, with a few merges and controls."""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ingle.contracts.media import MediaAssets
from ingle.contracts.text_assets import TextAssets
from ingle.text.tokenizer import _byte_alphabet  # pyright: ignore[reportPrivateUsage]

BOS, END, START = 256, 257, 258
VOCAB_SIZE = 262
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_assets(chat_template: str | None = TEMPLATE) -> TextAssets:
    letters = {byte: char for char, byte in _byte_alphabet().items()}
    vocab = {letters[b]: b for b in range(256)}
    vocab |= {"<|bos|>": BOS, "<|end|>": END, "<|start|>": START, "he": 259, "ll": 260, "hell": 261}
    merges = [("h", "e"), ("l", "l"), ("he", "ll")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|end|>", "<|start|>"])
    return TextAssets(
        tokenizer_json=tokenizer.to_str().encode(),
        bos_token_id=BOS,
        eos_token_ids=(END,),
        chat_template=chat_template,
        special_tokens={"bos_token": "<|bos|>", "eos_token": "<|end|>"},
    )


MEDIA_TOKENS = ("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>")
MEDIA_VOCAB_SIZE = VOCAB_SIZE + len(MEDIA_TOKENS)
MEDIA_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %}{{ '<|' ~ p.type ~ '|>' }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def media_assets(**changes: object) -> TextAssets:
    """The tiny tokenizer with Gemma 4's media tokens, ids 262 to 268."""
    tiny = tiny_assets(MEDIA_TEMPLATE)
    assert tiny.tokenizer_json is not None
    tokenizer = Tokenizer.from_str(tiny.tokenizer_json.decode())
    tokenizer.add_special_tokens(list(MEDIA_TOKENS))
    names = ("boi", "image", "eoi", "boa", "audio", "eoa", "video")
    settings = {
        "token_ids": {name: VOCAB_SIZE + i for i, name in enumerate(names)},
        "token_texts": dict(zip(names, MEDIA_TOKENS, strict=True)),
        "kinds": frozenset(("image", "audio", "video")),
        "image_budget": 70,
        **changes,
    }
    return replace(tiny, tokenizer_json=tokenizer.to_str().encode(), media=MediaAssets(**settings))  # pyright: ignore
