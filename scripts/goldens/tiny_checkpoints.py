"""Make the tiny random checkpoints of tests/parity and the reference's logits and greedy tokens for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

PARITY = Path(__file__).parents[2] / "tests" / "parity"
VOCAB, PROMPTS, GREEDY = 160, (5, 12, 40), 16
SLIDING, FULL = "sliding_attention", "full_attention"
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def models() -> dict[str, torch.nn.Module]:
    plain = {"rope_type": "default", "rope_theta": 100000.0}
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    return {
        "llama": LlamaForCausalLM(
            LlamaConfig(
                **BASE,
                num_hidden_layers=3,
                tie_word_embeddings=True,
                rope_parameters=plain,
                rms_norm_eps=1e-5,
            )
        ),
        "llama3": LlamaForCausalLM(
            LlamaConfig(**BASE, num_hidden_layers=3, tie_word_embeddings=False, rope_parameters=LLAMA3)
        ),
        "llama_bias": LlamaForCausalLM(
            LlamaConfig(
                **BASE,
                num_hidden_layers=2,
                head_dim=16,
                attention_bias=True,
                mlp_bias=True,
                rope_parameters=linear,
            )
        ),
        "qwen3": Qwen3ForCausalLM(
            Qwen3Config(**BASE, num_hidden_layers=3, head_dim=16, rope_parameters=plain)
        ),
        "qwen3_moe": Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **BASE,
                num_hidden_layers=2,
                head_dim=16,
                moe_intermediate_size=24,
                num_experts=6,
                num_experts_per_tok=2,
                norm_topk_prob=True,
                rope_parameters=plain,
            )
        ),
        "gemma3": Gemma3ForCausalLM(
            Gemma3TextConfig(
                **{**BASE, "num_key_value_heads": 1},
                num_hidden_layers=7,
                head_dim=16,
                query_pre_attn_scalar=24,
                sliding_window=16,
                layer_types=[SLIDING] * 5 + [FULL, SLIDING],
                max_position_embeddings=4096,
            )
        ),
    }


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Every parameter gets a value that matters, norms and biases too, so that none can be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    norm_mean = 0.0 if isinstance(model, Gemma3ForCausalLM) else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                mean = norm_mean if "norm" in name else 0.0
                parameter.copy_(mean + 0.2 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)


def older_dialect(config: dict) -> dict:
    """The same settings as files written before transformers 5 spell them."""
    rope = config.pop("rope_parameters")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    if SLIDING in rope:
        config["rope_local_base_freq"] = rope[SLIDING]["rope_theta"]
        config["rope_theta"] = rope[FULL]["rope_theta"]
        return config
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


@torch.no_grad()
def reference(model: torch.nn.Module) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    out: dict[str, np.ndarray] = {}
    for i, length in enumerate(PROMPTS):
        ids = torch.tensor(random.integers(3, VOCAB, length))[None]
        out[f"ids{i}"] = ids[0].numpy().astype(np.int32)
        out[f"logits{i}"] = model(input_ids=ids, use_cache=False).logits[0].numpy()
        sequence = ids
        for _ in range(GREEDY):
            token = model(input_ids=sequence, use_cache=False).logits[0, -1].argmax()
            sequence = torch.cat([sequence, token.reshape(1, 1)], dim=1)
        out[f"greedy{i}"] = sequence[0, length:].numpy().astype(np.int32)
    return out


def main() -> None:
    torch.manual_seed(0)
    for name, model in models().items():
        randomise(model, seed=sum(map(ord, name)))
        folder = PARITY / "fixtures" / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        loaded = type(model).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.older.json").write_text(
            json.dumps(older_dialect(config), indent=1, sort_keys=True) + "\n"
        )
        np.savez_compressed(PARITY / "goldens" / f"{name}.npz", **reference(loaded))


if __name__ == "__main__":
    main()
