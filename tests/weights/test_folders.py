"""Model folders: safetensors, indexes, dialects and MLX quantisation, good and hostile."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.contracts.weights import Affine, Dense
from ingle.errors import CheckpointError
from ingle.kernels import ops
from ingle.weights.checkpoint import open_checkpoint
from ingle.weights.hf_config import model_config
from ingle.weights.safetensors import SafetensorsFolder
from support.writers import safetensors

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}


def test_reads_what_was_written(tmp_path: Path) -> None:
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
    safetensors(tmp_path / "model.safetensors", values)
    folder = SafetensorsFolder(tmp_path)
    assert set(folder.names()) == {"a", "b"}
    assert folder.read("a").tolist() == values["a"].tolist()
    assert folder.read("b").dtype == mx.float16
    with pytest.raises(CheckpointError, match="'c' is missing"):
        folder.read("c")


def test_shards_through_the_index(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        safetensors(tmp_path / f"m-{i}.safetensors", {name: np.full(3, i, np.float32)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "m-0.safetensors", "b": "m-1.safetensors"}}))
    assert SafetensorsFolder(tmp_path).read("b").tolist() == [1, 1, 1]
    for shard in ("../m-0.safetensors", "/etc/passwd", "sub/m-0.safetensors", 5, "m-9.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(CheckpointError):
            SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]},
        {"dtype": "F8", "shape": [8], "data_offsets": [0, 8]},
        {"dtype": 7, "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        "nonsense",
    ],
)
def test_bad_entries_name_the_tensor(tmp_path: Path, entry: Any) -> None:
    raw = json.dumps({"bad": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 8)
    with pytest.raises(CheckpointError, match="'bad'"):
        SafetensorsFolder(tmp_path)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_cleanly(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "model.safetensors").write_bytes(data)
    with contextlib.suppress(CheckpointError):
        assert list(SafetensorsFolder(folder).names()) == []


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    raw = json.dumps({"a": one, "b": {**one, "data_offsets": [4, 12]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 12)
    with pytest.raises(CheckpointError, match="overlaps"):
        SafetensorsFolder(tmp_path)


def config(**changes: Any) -> Any:
    return model_config({**CONFIG, **changes}, "config.json")


def test_dialects_and_scaling() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    new = config(rope_parameters={**scaling, "rope_theta": 9000.0})
    old = config(rope_parameters=None, rope_theta=9000.0, rope_scaling=scaling)
    assert new == old
    assert new.rope["full"].theta == 9000.0
    legacy = config(rope_parameters=None, rope_theta=9000.0, rope_scaling={"type": "linear", "factor": 2})
    assert (legacy.rope["full"].kind, legacy.rope["full"].factor) == ("linear", 2.0)
    long = config(
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters=None,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    )
    assert long.context_length == 64
    assert long.rope["full"].factors == (1.0,) * 8


def test_minicpm_scales() -> None:
    got = config(model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=16)
    assert got.embed_scale == 12
    assert got.residual_scale == pytest.approx(1.4 / 2**0.5)
    assert got.logit_scale == 0.25
    assert got.tied_head


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; supported: llama"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected an integer"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'; supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": []}, "rope_parameters is \\[\\], expected an object"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
        ({"sliding_window": 4}, "sliding_window is 4"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": ["x"]}, "eos_token_id"),
        ({"head_dim": 15}, "head_dim is 15"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config(**changes)


def test_mlx_quantisation_and_overrides(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    for name, bits, group in (("x", 4, 64), ("y", 8, 32)):
        codes, scales, biases = mx.quantize(
            mx.array(random.normal(size=(8, 64)).astype(np.float32)), group, bits
        )
        layer = f"model.layers.0.mlp.{name}"
        expected[layer] = np.array(mx.dequantize(codes, scales, biases, group, bits))
        tensors |= {f"{layer}.weight": np.array(codes), f"{layer}.scales": np.array(scales)}
        tensors[f"{layer}.biases"] = np.array(biases)
    tensors["model.layers.0.mlp.z.weight"] = np.ones((2, 2), np.float32)
    safetensors(tmp_path / "model.safetensors", tensors)
    settings: dict[str, Any] = {
        "group_size": 64,
        "bits": 4,
        "model.layers.0.mlp.y": {"group_size": 32, "bits": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization": settings}))
    weights = open_checkpoint(tmp_path).weights
    for layer, values in expected.items():
        weight = weights.take(f"{layer}.weight")
        assert isinstance(weight, Affine)
        assert np.array_equal(np.array(ops.dequantize(weight, mx.float32)), values)
    assert isinstance(weights.take("model.layers.0.mlp.z.weight"), Dense)
    for bad, message in (
        ({"bits": 4, "group_size": 32}, "do not fit"),
        ({"bits": 7, "group_size": 64}, "bits is 7"),
        ({"bits": 4, "mode": "mxfp4"}, "mode is 'mxfp4'"),
        ({"quant_method": "gptq", "bits": 4}, "quant_method is 'gptq'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization": bad}))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(tmp_path).weights.take("model.layers.0.mlp.y.weight")


def test_gemma_norms_arrive_as_factors() -> None:
    fixture = Path(__file__).parents[1] / "parity" / "fixtures" / "gemma3"
    weight = open_checkpoint(fixture).weights.take("model.norm.weight")
    assert isinstance(weight, Dense)
    stored = SafetensorsFolder(fixture).read("model.norm.weight")
    assert mx.array_equal(weight.values, stored + 1).item()


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(CheckpointError, match="not JSON"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_checkpoint(tmp_path)
