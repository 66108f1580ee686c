"""Make the tiny random Gemma 4 assistants of tests/parity and the reference's drafts, and a trained pair's.

One assistant for each form: `gemma4_e_assistant` (a head of centroids), `gemma4_dense_assistant` (a plain one),
`gemma4_flat_assistant` (the unified type). The reference is transformers' forward with positions and keys as the
assistants were trained: all queries of a round at position P - 1 for P valid entries, the last `window`
entries of the sliding layer. (transformers' own generate loop stands at P and reads one key more.)

`tiny_gemma4_assistant.npz` holds what the pair that comes with Ingle drafts and accepts, greedily, three drafts
a round, each round from KV that never saw a rejected token.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import gemma4 as base
import numpy as np
import torch
import transformers as hf

from support.gemma4 import IDS, VOCAB, WINDOW, prompt

BUNDLED = base.PARITY.parents[1] / "src" / "ingle" / "bundled"
SIZES, STEPS, DRAFTS = (5, 12, 23, 40), 6, 3
SEED = 4  # with it nobody drafts a soft token, which has no embedding of its own
QUESTIONS = (("Count from 17.", False), ("What is 12 plus 9?", True), ("Repeat: hedgehog", False))  # thinking
TEXT = {
    "vocab_size": VOCAB, "vocab_size_per_layer_input": 0, "hidden_size_per_layer_input": 0, "hidden_size": 24,
    "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": 4, "num_kv_shared_layers": 4,
    "layer_types": [base.S, base.S, base.S, base.F], "head_dim": 8, "global_head_dim": 16,
    "sliding_window": WINDOW, "max_position_embeddings": 4096,
}  # fmt: skip


def assistants() -> dict[str, Any]:
    e = hf.Gemma4TextConfig(**TEXT, num_key_value_heads=1)
    dense = {**TEXT, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    flat = {
        k: v
        for k, v in dense.items()
        if k not in ("vocab_size_per_layer_input", "hidden_size_per_layer_input")
    }
    ordered = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 3}
    plain = {"use_ordered_embeddings": False, "backbone_hidden_size": 32}
    return {
        "gemma4_e": hf.Gemma4AssistantForCausalLM(
            hf.Gemma4AssistantConfig(text_config=e, backbone_hidden_size=32, **ordered)
        ),
        "gemma4_dense": hf.Gemma4AssistantForCausalLM(
            hf.Gemma4AssistantConfig(text_config=hf.Gemma4TextConfig(**dense), **plain)
        ),
        "gemma4_flat": hf.Gemma4UnifiedAssistantForCausalLM(
            hf.Gemma4UnifiedAssistantConfig(text_config=hf.Gemma4UnifiedTextConfig(**flat), **plain)
        ),
    }


def cut(kv: dict[str, Any], window: int) -> dict[str, Any]:
    """The entries that a round reads."""
    return {
        kind: (k[:, :, -window:], v[:, :, -window:]) if kind == base.S else (k, v)
        for kind, (k, v) in kv.items()
    }


def computed(target: Any, ids: list[int]) -> Any:
    return target(
        input_ids=torch.tensor([ids]),
        use_cache=False,
        output_hidden_states=True,
        return_shared_kv_states=True,
    )


def chain(target: Any, assistant: Any, result: Any, newest: int, entries: int, steps: int) -> list[Any]:
    """The assistant's outputs step by step."""
    embed = target.get_input_embeddings()
    token, hidden = torch.tensor([[newest]]), result.hidden_states[-1][:, -1:]
    out = []
    for _ in range(steps):
        got = assistant(
            inputs_embeds=torch.cat([embed(token), hidden], -1),
            position_ids=torch.tensor([[entries - 1]]),
            attention_mask=None,
            shared_kv_states=cut(result.shared_kv_states, assistant.config.get_text_config().sliding_window),
            use_cache=False,
        )
        token, hidden = got.logits.argmax(-1), got.last_hidden_state
        out.append(got)
    return out


@torch.no_grad()
def reference(target: Any, assistant: Any) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for size in SIZES:
        ids = prompt(size)
        result = computed(target, ids)
        newest = int(result.logits[0, -1].argmax())
        steps = chain(target, assistant, result, newest, size, STEPS)
        out[f"{size}.newest"] = np.array(newest)
        out[f"{size}.hidden"] = result.hidden_states[-1][0, -1].numpy()
        for kind, (keys, values) in result.shared_kv_states.items():
            out[f"{size}.{kind}.k"], out[f"{size}.{kind}.v"] = keys[0].numpy(), values[0].numpy()
        out[f"{size}.tokens"] = np.array([int(step.logits.argmax()) for step in steps])
        out[f"{size}.logits"] = np.stack([step.logits[0, 0].numpy() for step in steps])
        out[f"{size}.back"] = np.stack([step.last_hidden_state[0, 0].numpy() for step in steps])
    return out


@torch.no_grad()
def trace(target: Any, assistant: Any, ids: list[int], count: int, end: int) -> dict[str, np.ndarray]:
    """Greedy: the target's tokens, and of each round its drafts and how many were accepted."""
    known, rounds, accepted = list(ids), [], []
    result = computed(target, known)
    known.append(int(result.logits[0, -1].argmax()))
    while len(known) < len(ids) + count and end not in known[len(ids) :]:
        result = computed(target, known[:-1])
        steps = chain(target, assistant, result, known[-1], len(known) - 1, DRAFTS)
        drafts = [int(step.logits.argmax()) for step in steps]
        chosen = computed(target, [*known, *drafts]).logits[0, len(known) - 1 :].argmax(-1).tolist()
        right = next(
            (i for i, pair in enumerate(zip(drafts, chosen, strict=False)) if pair[0] != pair[1]), DRAFTS
        )
        known += chosen[: right + 1]
        rounds.append(drafts)
        accepted.append(right)
    return {
        "ids": np.array(ids),
        "tokens": np.array(known[len(ids) :]),
        "drafts": np.array(rounds),
        "accepted": np.array(accepted),
    }


def main() -> None:
    torch.set_num_threads(1)
    fixtures = base.PARITY / "fixtures"
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    for name, model in assistants().items():
        model.eval()
        base.randomise(model, sum(map(ord, name)) + SEED)
        if (ordering := getattr(model, "masked_embedding", None)) is not None:
            order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
            ordering.token_ordering.copy_(order)
        folder = fixtures / f"{name}_assistant"
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").chmod(0o644)
        kind = (
            hf.Gemma4UnifiedForConditionalGeneration
            if name == "gemma4_flat"
            else hf.Gemma4ForConditionalGeneration
        )
        target = kind.from_pretrained(fixtures / name, **options).eval()
        assistant = type(model).from_pretrained(folder, **options).eval()
        results = reference(target, assistant)
        np.savez_compressed(base.PARITY / "goldens" / f"{name}_assistant.npz", **results)
        soft = {IDS[key] for key in ("image_token_id", "audio_token_id", "video_token_id")}
        assert not soft & {int(t) for size in SIZES for t in results[f"{size}.tokens"]}, "take another SEED"
        print(name, [results[f"{size}.tokens"].tolist() for size in SIZES])
    target = hf.Gemma4ForConditionalGeneration.from_pretrained(BUNDLED / "tiny-gemma4", **options).eval()
    assistant = hf.Gemma4AssistantForCausalLM.from_pretrained(
        BUNDLED / "tiny-gemma4-assistant", **options
    ).eval()
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(BUNDLED / "tiny-gemma4" / "tokenizer.json"),
        bos_token="<bos>",
        chat_template=(BUNDLED / "tiny-gemma4" / "chat_template.jinja").read_text(),
    )
    end = tokenizer.convert_tokens_to_ids("<turn|>")
    results = {}
    for number, (text, thinking) in enumerate(QUESTIONS):
        written = tokenizer.apply_chat_template(
            [{"role": "user", "content": [{"type": "text", "text": text}]}],
            enable_thinking=thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        got = trace(target, assistant, tokenizer.encode(written, add_special_tokens=False), 64, end)
        results |= {f"{number}.{key}": value for key, value in got.items()}
        print(repr(tokenizer.decode(got["tokens"])), got["accepted"].tolist())
    np.savez_compressed(base.PARITY / "goldens" / "tiny_gemma4_assistant.npz", **results)


if __name__ == "__main__":
    main()
