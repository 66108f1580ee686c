"""Make the tiny random Gemma 4 checkpoints of tests/parity and the reference's numbers for them.

One checkpoint for each structure of the family: `gemma4_e` (per-layer inputs, shared KV, wide MLPs, clipped
towers), `gemma4_dense` (keys are values), `gemma4_moe`, `gemma4_flat` (without towers). Weights are rounded to
bfloat16 and stored so; the reference computes with them in float32. Where the tokens of a picture see each
other the masks are given explicitly, as DeepMind's own code has them: full layers causal, sliding layers
(causal or same picture) within the window.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

_library = torch.library.Library(
    "torchvision", "DEF"
)  # a torchvision built for CUDA lacks these beside CPU torch
for _name in ("nms", "qnms"):
    _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import transformers as hf  # noqa: E402

PARITY = Path(__file__).parents[2] / "tests" / "parity"
sys.path.insert(0, str(PARITY.parent))
from support.gemma4 import CASES, IDS, SIZES, VOCAB, WINDOW, case, prompt  # noqa: E402

S, F = "sliding_attention", "full_attention"
TEXT = {
    "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16,
    "sliding_window": WINDOW, "final_logit_softcapping": 30.0, "max_position_embeddings": 4096,
}  # fmt: skip
DENSE = {
    **TEXT, "layer_types": [S, S, S, F], "num_hidden_layers": 4, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "use_bidirectional_attention": "vision",
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 32,
}  # fmt: skip
AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [128, 4],
    "output_proj_dims": 24,
}  # fmt: skip


def models() -> dict[str, torch.nn.Module]:
    towers = {"hidden_size_per_layer_input": 0}
    e = {
        **TEXT, "num_key_value_heads": 1, "num_hidden_layers": 8, "layer_types": [S, S, S, F] * 2,
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 4, "use_double_wide_mlp": True,
    }  # fmt: skip
    experts = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 16}
    flat = {k: v for k, v in DENSE.items() if k != "vocab_size_per_layer_input"}

    def with_towers(text: dict[str, Any], vision: dict[str, Any], audio: Any) -> torch.nn.Module:
        return hf.Gemma4ForConditionalGeneration(
            hf.Gemma4Config(
                text_config=hf.Gemma4TextConfig(**text),
                vision_config=hf.Gemma4VisionConfig(**VISION, **vision),
                audio_config=audio,
                **IDS,
            )
        )

    return {
        "gemma4_e": with_towers(e, {"use_clipped_linears": True}, hf.Gemma4AudioConfig(**AUDIO)),
        "gemma4_dense": with_towers({**DENSE, **towers}, {"standardize": True}, None),
        "gemma4_moe": with_towers({**DENSE, **towers, **experts}, {"standardize": True}, None),
        "gemma4_flat": hf.Gemma4UnifiedForConditionalGeneration(
            hf.Gemma4UnifiedConfig(
                text_config=hf.Gemma4UnifiedTextConfig(**flat),
                vision_config=hf.Gemma4UnifiedVisionConfig(
                    mm_embed_dim=16, mm_posemb_size=16, output_proj_dims=16
                ),
                audio_config=hf.Gemma4UnifiedAudioConfig(),
                **IDS,
            )
        ),
    }


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Every parameter and buffer gets a value that matters, so that none can be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() in seen or not tensor.is_floating_point():
            continue
        seen.add(tensor.data_ptr())
        leaf = name.rsplit(".", 1)[-1]
        mean, std = 0.0, 1.0 / math.sqrt(max(1, math.prod(tensor.shape[1:])))
        if leaf in ("input_min", "output_min"):
            mean, std = -1.5, 0.1
        elif leaf in ("input_max", "output_max"):
            mean, std = 1.5, 0.1
        elif leaf in ("layer_scalar", "std_scale", "scale", "per_expert_scale"):
            mean, std = 0.9, 0.1
        elif leaf in ("std_bias", "per_dim_scale", "position_embedding_table", "pos_embedding", "bias"):
            std = 0.3
        elif leaf == "weight" and tensor.ndim == 1:
            # Attention has scale 1: keep its softmax soft.
            mean = tensor.numel() ** -0.25 if "q_norm" in name or "k_norm" in name else 1.0
            std = 0.15 * mean
        elif tensor.ndim == 3 and "experts" in name:
            std = tensor.shape[-1] ** -0.5
        values = torch.randn(tensor.shape, generator=generator) * std + mean
        tensor.copy_(values.to(torch.bfloat16).to(tensor.dtype))


def masks(types: np.ndarray) -> dict[str, torch.Tensor]:
    """Additive masks of both layer kinds. `types`: 1 and 2 are tokens of pictures and frames."""
    n = len(types)
    q, k = np.arange(n)[:, None], np.arange(n)[None]
    seen = (types == 1) | (types == 2)
    number = np.where(seen, np.cumsum(seen & ~np.r_[False, seen[:-1]]), -np.arange(n) - 1)
    causal = k <= q
    sliding = (k > q - WINDOW) & (causal | (number[:, None] == number[None]))

    def additive(allowed: np.ndarray) -> torch.Tensor:
        return torch.where(torch.tensor(allowed), 0.0, torch.finfo(torch.float32).min)[None, None]

    return {"full_attention": additive(causal), "sliding_attention": additive(sliding)}


@torch.no_grad()
def reference(model: Any, flat: bool) -> dict[str, np.ndarray]:
    both_ways = model.config.text_config.use_bidirectional_attention == "vision"
    out: dict[str, np.ndarray] = {}
    for name, size in SIZES.items():
        ids = torch.tensor(prompt(size))[None]
        out[f"{name}.logits"] = model(input_ids=ids, use_cache=False).logits[0].numpy()
        got = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        out[f"{name}.greedy"] = got[0, size:].numpy()
    for name in CASES:
        c = case(name, flat)
        if "audio" in c.kinds and model.config.audio_config is None:
            continue
        inputs: dict[str, Any] = {}
        for kind, (values, positions) in (
            ("image", ("pixel_values", "image_position_ids")),
            ("video", ("pixel_values_videos", "video_position_ids")),
        ):
            blocks = [b for b in c.blocks if b.kind == kind]
            if blocks:
                inputs[values] = torch.tensor(np.stack([b.arrays["patches"] for b in blocks]))
                inputs[positions] = torch.tensor(
                    np.stack([b.arrays["positions"] for b in blocks]), dtype=torch.long
                )
            if blocks and kind == "video":
                inputs["num_frames_per_video"] = torch.tensor([len(blocks)])
        sounds = [b for b in c.blocks if b.kind == "audio"]
        if sounds:
            values = sounds[0].arrays["raw" if flat else "mel"]
            inputs["input_features"] = torch.tensor(values)[None]
            valid = torch.ones(len(values)) if flat else torch.tensor(values[:, -1] != 0)
            inputs["input_features_mask"] = valid[None].bool()
        ids, types = torch.tensor(c.ids)[None], torch.tensor(c.types)[None]
        mask: Any = masks(np.array(c.types)) if both_ways else torch.ones_like(ids)
        result = model(input_ids=ids, attention_mask=mask, mm_token_type_ids=types, use_cache=False, **inputs)
        out[f"{name}.logits"] = result.logits[0].numpy()
        for kind in ("image", "audio"):
            if kind in c.kinds and f"features.{kind}" not in out:
                out[f"features.{kind}"] = features(model, kind, inputs)
    return out


def features(model: Any, kind: str, inputs: dict[str, Any]) -> np.ndarray:
    """Soft tokens of the first picture or sound of a case."""
    if kind == "image":
        got = model.model.get_image_features(
            inputs["pixel_values"], inputs["image_position_ids"], return_dict=True
        )
    else:
        got = model.model.get_audio_features(
            inputs["input_features"], inputs["input_features_mask"], return_dict=True
        )
    pooled = got.pooler_output
    return (
        torch.cat(list(pooled)) if not torch.is_tensor(pooled) else pooled.reshape(-1, pooled.shape[-1])
    ).numpy()


def main() -> None:
    torch.set_num_threads(1)
    for name, model in models().items():
        model.eval()
        randomise(model, sum(map(ord, name)))
        folder = PARITY / "fixtures" / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        text = config["text_config"]
        older = json.loads(json.dumps(config))
        own = next(iter(older["text_config"].pop("per_layer_config").values()))
        older["text_config"]["global_head_dim"] = own["head_dim"]
        if "num_key_value_heads" in own:
            older["text_config"]["num_global_key_value_heads"] = own["num_key_value_heads"]
        for key in ("global_head_dim", "num_global_key_value_heads"):
            text.pop(key, None)
        (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        (folder / "config.older.json").write_text(json.dumps(older, indent=1, sort_keys=True) + "\n")
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").chmod(0o644)
        loaded = type(model).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        results = reference(loaded, name == "gemma4_flat")
        np.savez_compressed(PARITY / "goldens" / f"{name}.npz", **results)
        print(name, {key: value.shape for key, value in results.items()})


if __name__ == "__main__":
    main()
