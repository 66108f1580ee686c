"""Write a Llama checkpoint's weights in the folder formats that the Python peers read."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx

from ingle.contracts.weights import Affine
from ingle.kernels import ops
from ingle.weights.checkpoint import open_checkpoint


def export(checkpoint_path: Path, folder: Path, *, codes: bool) -> Path:
    """The model in `folder`: with `codes` quantised as it is (mlx-lm's format, float32 scales, the same
    values), else dense bfloat16 (transformers). Does nothing where the folder is there."""
    if (folder / "model.safetensors").exists():
        return folder
    checkpoint = open_checkpoint(checkpoint_path)
    c = checkpoint.config
    tensors: dict[str, mx.array] = {}
    quantization: dict[str, object] = {"group_size": 32, "bits": 4}
    for name in checkpoint.weights.names():
        weight = checkpoint.weights.take(name)
        if not isinstance(weight, Affine):
            tensors[name] = weight.values.astype(mx.float32 if codes else mx.bfloat16)
        elif codes:
            stem = name.removesuffix(".weight")
            tensors |= {name: weight.codes, f"{stem}.scales": weight.scales.astype(mx.float32)}
            tensors[f"{stem}.biases"] = weight.biases.astype(mx.float32)
            quantization[stem] = {"group_size": weight.group_size, "bits": weight.bits}
        else:
            tensors[name] = ops.dequantize(weight, mx.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope["full"].theta,
        "tie_word_embeddings": c.tied_head,
    }
    if codes:
        config["quantization"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx" if codes else "pt"})
    return folder
