"""Measure Gemma 4 against mlx-vlm and transformers, interleaved in one run: medians and ratios.

    python benchmarks/gemma4_speed.py --mlx-python PYTHON --torch-python PYTHON [--rounds 3] [--json]

Two checkpoints: `tiny-gemma4`, and a random one of some 300M parameters in E2B's form (per-layer inputs,
shared KV). Ingle and mlx-vlm run the latter in 4 bits, transformers in bfloat16; the tiny one runs as it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mlx.core as mx
from compare import Rounds
from peers import CACHE, PythonPeer

from ingle import compose
from ingle.cli.measure import Meter
from ingle.config import EngineConfig
from ingle.kernels import native
from ingle.weights.catalog import CATALOG, BundledModel

SLIDING, FULL = "sliding_attention", "full_attention"
HIDDEN, INNER, LAYERS, SHARED, HEADS, DIM, VOCAB, WIDTH = 1024, 4096, 15, 8, 8, 128, 65_536, 64
TEXT = {
    "model_type": "gemma4_text", "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB,
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": DIM,
    "global_head_dim": 2 * DIM, "sliding_window": 512,
    "layer_types": [FULL if i % 5 == 4 else SLIDING for i in range(LAYERS)], "num_kv_shared_layers": SHARED,
    "hidden_size_per_layer_input": WIDTH, "use_double_wide_mlp": False, "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "attention_k_eq_v": False, "enable_moe_block": False, "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
    },
    "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
VISION = {  # the least tower: mlx-vlm does not load without one
    "model_type": "gemma4_vision", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16, "patch_size": 16,
    "pooling_kernel_size": 3, "position_embedding_size": 256, "use_clipped_linears": False,
    "standardize": False,    "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
}  # fmt: skip


def vision() -> dict[str, tuple[int, ...]]:
    layer = "vision_tower.encoder.layers.0"
    out: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embedder.input_proj.weight": (48, 768),
        "vision_tower.patch_embedder.position_embedding_table": (2, 256, 48),
        "embed_vision.embedding_projection.weight": (HIDDEN, 48),
    }
    out |= {f"{layer}.self_attn.{part}_proj.linear.weight": (48, 48) for part in "qkvo"}
    out |= {f"{layer}.self_attn.{part}_norm.weight": (16,) for part in "qk"}
    out |= {f"{layer}.mlp.{part}_proj.linear.weight": (64, 48) for part in ("gate", "up")}
    out[f"{layer}.mlp.down_proj.linear.weight"] = (48, 64)
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        out[f"{layer}.{norm}_layernorm.weight"] = (48,)
    return out


def matrices() -> dict[str, tuple[int, int]]:
    out = {
        "embed_tokens": (VOCAB, HIDDEN),
        "embed_tokens_per_layer": (VOCAB, LAYERS * WIDTH),
        "per_layer_model_projection": (LAYERS * WIDTH, HIDDEN),
    }
    for i, kind in enumerate(TEXT["layer_types"]):  # type: ignore[arg-type]
        dim, name = (2 * DIM if kind == FULL else DIM), f"layers.{i}"
        out[f"{name}.self_attn.q_proj"] = (HEADS * dim, HIDDEN)
        out[f"{name}.self_attn.o_proj"] = (HIDDEN, HEADS * dim)
        if i < LAYERS - SHARED:
            out |= {f"{name}.self_attn.{part}_proj": (dim, HIDDEN) for part in "kv"}
        out |= {f"{name}.mlp.{part}_proj": (INNER, HIDDEN) for part in ("gate", "up")}
        out[f"{name}.mlp.down_proj"] = (HIDDEN, INNER)
        out[f"{name}.per_layer_input_gate"] = (WIDTH, HIDDEN)
        out[f"{name}.per_layer_projection"] = (HIDDEN, WIDTH)
    return out


def vectors() -> dict[str, int]:
    out = {"norm.weight": HIDDEN, "per_layer_projection_norm.weight": WIDTH}
    for i, kind in enumerate(TEXT["layer_types"]):  # type: ignore[arg-type]
        dim, name = (2 * DIM if kind == FULL else DIM), f"layers.{i}"
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            out[f"{name}.{norm}_layernorm.weight"] = HIDDEN
        out[f"{name}.post_per_layer_input_norm.weight"] = HIDDEN
        out[f"{name}.self_attn.q_norm.weight"] = dim
        if i < LAYERS - SHARED:
            out[f"{name}.self_attn.k_norm.weight"] = dim
        out[f"{name}.layer_scalar"] = 1
    return out


def checkpoint(folder: Path, *, codes: bool) -> Path:
    """Random weights in `folder`, in 4 bits (groups of 64) or bfloat16. Does nothing where it is there."""
    if (folder / "model.safetensors").exists():
        return folder
    mx.random.seed(0)
    prefix = "language_model.model." if codes else "model.language_model."
    tensors: dict[str, mx.array] = {}
    for name, shape in matrices().items():
        values = (mx.random.normal(shape) * shape[1] ** -0.5).astype(mx.bfloat16)
        if codes:
            parts = mx.quantize(values, group_size=64, bits=4)
            names = ("weight", "scales", "biases")
            tensors |= {f"{prefix}{name}.{n}": p for n, p in zip(names, parts, strict=True)}
        else:
            tensors[f"{prefix}{name}.weight"] = values
    for name, size in vectors().items():
        tensors[prefix + name] = mx.full(
            (size,), 0.3 if "q_norm" in name or "k_norm" in name else 1.0, mx.bfloat16
        )
    for name, dims in vision().items():
        tensors[name if codes else f"model.{name}"] = (mx.random.normal(dims) * 0.1).astype(mx.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "text_config": TEXT,
        "vision_config": VISION, "audio_config": None, "vocab_size": VOCAB, "tie_word_embeddings": True,
    }  # fmt: skip
    if codes:
        config["quantization"] = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx" if codes else "pt"})
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mlx-python", type=Path, required=True, help="an environment with mlx-vlm")
    parser.add_argument("--torch-python", type=Path, required=True, help="one with torch and transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tiny = CATALOG["tiny-gemma4"]
    assert isinstance(tiny, BundledModel)
    folders = {
        "tiny": (tiny.path, tiny.path),
        "mid": (
            checkpoint(CACHE / "gemma4-mid-4bit", codes=True),
            checkpoint(CACHE / "gemma4-mid-bf16", codes=False),
        ),
    }
    threads = native.cpu.threads()
    peers = {
        "mlx_vlm": PythonPeer(options.mlx_python, threads),
        "transformers": PythonPeer(options.torch_python, threads),
    }
    results: dict[str, float] = {}
    for size, (codes, dense) in folders.items():
        engine = compose.load(
            codes, name=size, config=EngineConfig(prompt_cache_bytes=0), drafter="none"
        ).engine
        meter, rounds = Meter(engine), Rounds()
        meter.prefill(32)
        rounds.add("ingle prefill", lambda meter=meter: meter.prefill(options.prompt)[0])
        rounds.add("ingle decode", lambda meter=meter: meter.decode(1, options.tokens, options.prompt))
        taken: dict[str, dict[str, float]] = {}

        def prefill(name: str, folder: Path, taken: dict[str, dict[str, float]] = taken) -> float:
            taken[name] = peers[name].rates(name, folder, options.prompt, options.tokens)
            return taken[name]["prefill"]

        for name, folder in (("mlx_vlm", codes), ("transformers", dense)):
            rounds.add(f"{name} prefill", lambda name=name, folder=folder: prefill(name, folder))
            rounds.add(f"{name} decode", lambda name=name, taken=taken: taken[name]["decode"])
        rounds.take(options.rounds)
        engine.close()
        for name in peers:
            for what in ("prefill", "decode"):
                results[f"{size} {what} vs {name}"] = rounds.ratio(f"ingle {what}", f"{name} {what}")
        results |= {f"{size} {name}": rounds.median(name) for name in rounds.values}
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        for name, value in results.items():
            print(f"{name:36} {value:10.2f}")


if __name__ == "__main__":
    main()
