"""MiniCPM's three scales do what its formula says: a Llama with the scales folded into its weights agrees."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np

from ingle import compose
from ingle.contracts.graph import Phase, PhaseGroup
from ingle.forward.packed import forward
from ingle.weights.safetensors import SafetensorsFolder
from support.writers import safetensors

LLAMA = Path(__file__).parents[1] / "parity" / "fixtures" / "llama3"  # its head is not tied


def logits(folder: Path) -> np.ndarray:
    graph, _ = compose.load_graph(folder, "float32")
    ids = mx.array([[5, 9, 17, 4, 80]])
    return np.array(graph.logits(forward(graph, [PhaseGroup(Phase.WINDOW, ids, graph.make_state(1))])[0][0]))


def test_scales_equal_folded_weights(tmp_path: Path) -> None:
    config = json.loads((LLAMA / "config.json").read_text())
    source = SafetensorsFolder(LLAMA)
    weights = {name: np.array(source.read(name)) for name in source.names()}
    scaled, folded = tmp_path / "minicpm", tmp_path / "llama"
    for folder in (scaled, folded):
        folder.mkdir()
    safetensors(scaled / "model.safetensors", weights)
    settings = {"model_type": "minicpm", "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 24}
    (scaled / "config.json").write_text(json.dumps({**config, **settings, "tie_word_embeddings": False}))
    depth = 1.4 / config["num_hidden_layers"] ** 0.5
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = weights[name] * np.float32(depth)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] * np.float32(3)
    weights["lm_head.weight"] = weights["lm_head.weight"] * np.float32(24 / config["hidden_size"])
    safetensors(folded / "model.safetensors", weights)
    (folded / "config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(logits(scaled), logits(folded), atol=1e-5)
    assert np.abs(logits(scaled) - logits(LLAMA)).max() > 0.1
