"""Reference tokens for the default model: its GGUF weights, dequantised, in transformers on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

TESTS = Path(__file__).parents[2] / "tests"
LENGTH = 48
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to ten.",
    "Why is the sky blue?",
    "Give me three names for a cat.",
)
TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n \t ", "a", " a", "a ", "Hello, world!", "Hello  world",
    "don't can't I'll we've he'd I'm they're", "DON'T", "1234567890", "3.14159", "1,000,000.50", "v1.2.3-rc4",
    "0x1F", "２０２６", "١٢٣", "½ ⅓ ²", "Ünïcödé", "naïve café", "Straße", "ﬁ ligature", "İstanbul", "ǅ",
    "Привет, мир", "Ελληνικά", "עברית שלום", "العربية مرحبا", "हिन्दी नमस्ते", "বাংলা", "தமிழ்", "ไทย สวัสดี",
    "မြန်မာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "한국어 안녕하세요", "日本語のテスト", "中文测试，标点。", "𠀀𠀁",
    "😀", "👍🏽", "👨‍👩‍👧‍👦", "🇫🇷🇩🇪", "❤️", "a😀b", "e\u0301", "\u0301", "a\u200bb", "\ufeffx", "\u00a0", "\u3000x",
    "x\u2028y", "zero\x00byte", "\x7f", "\x1b[0m", "tab\tseparated\tvalues", "trailing spaces   ", "    indented",
    "def f(x):\n    return x ** 2\n", "for (int i = 0; i < 10; ++i) { a[i] += 1; }", "SELECT * FROM t WHERE a='b';",
    "<html><body class=\"x\">&amp;</body></html>", "{\"a\": [1, 2, {\"b\": null}]}", "$\\sum_{i=1}^n x_i^2$",
    "# Title\n\n- item 1\n- item 2\n", "https://example.org/path?q=1&r=%20#frag", "user@example.org",
    "C:\\Users\\name", "/usr/local/bin", "snake_case camelCase PascalCase kebab-case", "CONSTANT_NAME", "a.b.c",
    "!!!", "???!!!...", "—–-", "“quotes” ‘single’", "«guillemets»", "(parens) [brackets] {braces}", "a+b=c", "50%",
    "$100", "€50", "£1", "#hashtag @mention", "e.g. i.e. etc.", "Mr. O'Neil's", "'s 't 're", "it's", "IT'S", "’s",
    "supercalifragilisticexpialidocious", "aaaaaaaaaaaaaaaaaaaaaaaa", "ababababab", "\n\n\n\n\n", " " * 17,
    "\t\t\t\tx", "line one\nline two\r\nline three", "mixed 中文 and English とカナ", "1a2b3c", "a1", "1 a", "½a",
    "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "<|im_end|><|im_end|>", " <|im_start|> ", "<|im_start|",
    "<repo_name>x", "the quick brown fox jumps over the lazy dog", "The Quick Brown Fox", "\u0915\u094d\u0937",
    "Ωmega", "ﷺ", "𝕳𝖊𝖑𝖑𝖔", "x²+y²=z²", "10:30am", "2026-12-01T12:00:00Z", "+1 (555) 123-4567", "a\u0000\u0001b",
]  # fmt: skip


@torch.no_grad()
def main() -> None:
    path = Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The reference's GGUF import drops a step of the model's published tokenizer.json: single digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)} for text in TEXTS]
    (TESTS / "text" / "goldens" / "smollm2.json").write_text(
        json.dumps(cases, ensure_ascii=True, indent=0) + "\n"
    )
    goldens = []
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        sequence, margins = torch.tensor(ids)[None], []
        cache = None
        pending = sequence
        for _ in range(LENGTH):
            out = model(input_ids=pending, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            top = out.logits[0, -1].topk(2)
            margins.append(round(float(top.values[0] - top.values[1]), 5))
            pending = top.indices[:1].reshape(1, 1)
            sequence = torch.cat([sequence, pending], dim=1)
        goldens.append(
            {
                "question": question,
                "prompt": ids,
                "greedy": sequence[0, len(ids) :].tolist(),
                "margins": margins,
            }
        )
    (TESTS / "parity" / "goldens" / "smollm2.json").write_text(json.dumps(goldens, indent=0) + "\n")


if __name__ == "__main__":
    main()
