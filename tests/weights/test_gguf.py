"""GGUF files: exact values, our naming, and nothing but CheckpointError for hostile bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as reference
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle import compose
from ingle.contracts.weights import Affine, Dense
from ingle.errors import CheckpointError
from ingle.kernels import ops
from ingle.weights.checkpoint import open_checkpoint
from ingle.weights.gguf import GGUFFile
from ingle.weights.gguf_blocks import BLOCK_TYPES, to_weight
from support.writers import gguf

META: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.context_length": 128,
    "llama.vocab_size": 5,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "some.list": ["a", "b"],
}


def f32(*shape: int, seed: int = 0) -> tuple[tuple[int, ...], int, bytes]:
    data = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return shape, 0, data.tobytes()


def tensors() -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    return {
        "token_embd.weight": f32(5, 32),
        "output_norm.weight": f32(32),
        "blk.0.attn_norm.weight": f32(32),
        "blk.0.ffn_norm.weight": f32(32),
        "blk.0.attn_q.weight": f32(32, 32, seed=1),
        "blk.0.attn_k.weight": f32(16, 32),
        "blk.0.attn_v.weight": f32(16, 32),
        "blk.0.attn_output.weight": f32(32, 32),
        "blk.0.ffn_gate.weight": f32(64, 32),
        "blk.0.ffn_up.weight": f32(64, 32),
        "blk.0.ffn_down.weight": f32(32, 64),
    }


GOOD = gguf(META, tensors())


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("number", [n for n, b in BLOCK_TYPES.items() if b.decode is not None])
def test_blocks_dequantise_like_the_reference(number: int) -> None:
    """Bit for bit in float32, on random codes with scales of every size that is finite."""
    kind = BLOCK_TYPES[number]
    random = np.random.default_rng(number)
    values = random.normal(0, 1, (8, 1024)).astype(np.float32) * np.float32(10.0) ** random.integers(
        -3, 3, (8, 1)
    )
    quantised = reference.GGMLQuantizationType(number)
    try:
        raw = reference.quants.quantize(values, quantised)
    except NotImplementedError:  # K-quants can only be read there: random bytes with sane scales
        raw = random.integers(0, 256, (8, 1024 // kind.items * kind.nbytes), dtype=np.uint8)
        blocks = raw.reshape(-1, kind.nbytes)
        for at in (208,) if kind.name == "Q6_K" else (0, 2):
            blocks[:, at : at + 2] = random.normal(0, 0.1, (len(blocks), 1)).astype("<f2").view(np.uint8)
    expected = reference.quants.dequantize(raw, quantised)
    weight = to_weight(kind, raw.reshape(-1), (8, 1024))
    assert isinstance(weight, Affine)
    assert weight.shape == (8, 1024)
    assert np.array_equal(np.array(ops.dequantize(weight, mx.float32)), expected)


@pytest.mark.parametrize(("number", "dtype"), [(0, mx.float32), (1, mx.float16), (30, mx.bfloat16)])
def test_plain_numbers_keep_their_type(number: int, dtype: mx.Dtype) -> None:
    raw = np.random.default_rng(0).integers(0, 100, 8 * BLOCK_TYPES[number].nbytes, dtype=np.uint8)
    weight = to_weight(BLOCK_TYPES[number], raw, (2, 4))
    assert isinstance(weight, Dense)
    assert weight.values.dtype == dtype
    assert weight.values.view(mx.uint8).flatten().tolist() == raw.tolist()


def test_names_rows_and_configuration(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, GOOD))
    assert checkpoint.config.head_dim == 16
    assert checkpoint.config.tied_head
    assert checkpoint.text is None
    weight = checkpoint.weights.take("model.layers.0.self_attn.q_proj.weight")
    assert isinstance(weight, Dense)
    stored = np.frombuffer(tensors()["blk.0.attn_q.weight"][2], np.float32).reshape(32, 32)
    # Rows of a head are stored in pairs (0, 8), (1, 9), ...: row 1 of the file is row 8 of the head.
    assert np.array_equal(np.array(weight.values)[[0, 8, 1, 9, 16, 24]], stored[[0, 1, 2, 3, 16, 17]])
    assert set(checkpoint.weights.names()) >= {"model.norm.weight", "model.layers.0.mlp.up_proj.weight"}
    graph, _ = compose.load_graph(tmp_path / "model.gguf")
    assert len(graph.layers) == 1


@given(cut=st.integers(0, len(GOOD) - 1))
def test_a_file_cut_short_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = write(tmp_path_factory.mktemp("cut"), GOOD[:cut])
    if cut > len(GOOD) - 32:
        return  # the last bytes may be padding
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


@given(data=st.data())
def test_changed_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    changed = bytearray(GOOD)
    header = GOOD.index(b"blk.0.ffn_down") + 60
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    try:
        checkpoint = open_checkpoint(write(tmp_path_factory.mktemp("changed"), bytes(changed)))
        for name in list(checkpoint.weights.names()):
            checkpoint.weights.take(name)
    except CheckpointError:
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "'mamba'; supported"),
        ({"general.architecture": 5}, "general.architecture is 5"),
        ({"llama.block_count": 0}, "block_count"),
        ({"llama.block_count": 10**6}, "block_count"),
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.attention.head_count": 3}, "rope|head|multiple|even"),
        ({"llama.attention.head_count_kv": 7}, "multiple"),
        ({"llama.embedding_length": "wide"}, "embedding_length is 'wide'"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "'yarn'; supported"),
        ({"general.alignment": 3}, "alignment"),
        ({"llama.embedding_length": 64}, "shape"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path, gguf({**META, **change}, tensors()))
    with pytest.raises(CheckpointError, match=message):
        compose.load_graph(path)


def test_bad_tensors_are_named(tmp_path: Path) -> None:
    for bad, message in (
        ((5, 33), "blocks of 32"),
        ((5, 32, 1, 1, 1), "5 dimensions"),
        ((2**62, 32), "needs bytes|cut short"),
    ):
        changed = {**tensors(), "token_embd.weight": (bad, 2, b"\0" * 90)}
        with pytest.raises(CheckpointError, match=message) as caught:
            GGUFFile(write(tmp_path, gguf(META, changed)))
        assert "token_embd.weight" in str(caught.value)
    unknown = {**tensors(), "output_norm.weight": ((32,), 99, b"\0" * 128)}
    with pytest.raises(CheckpointError, match=r"output_norm.*data type 99"):
        GGUFFile(write(tmp_path, gguf(META, unknown)))
    missing = tensors()
    del missing["blk.0.ffn_up.weight"]
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight"):
        compose.load_graph(write(tmp_path, gguf(META, missing)))


@pytest.mark.parametrize(
    "data", [b"", b"GGUF", b"GGML" + b"\0" * 100, b"GGUF\x09\0\0\0" + b"\0" * 40, b"PK\x03\x04"]
)
def test_foreign_files_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        open_checkpoint(write(tmp_path, data))


def test_huge_claims_allocate_nothing(tmp_path: Path) -> None:
    for at in (8, 16):  # tensor count, key count
        data = bytearray(GOOD)
        data[at : at + 8] = b"\xff" * 8
        with pytest.raises(CheckpointError, match="limits"):
            GGUFFile(write(tmp_path, bytes(data)))
    key = GOOD.index(b"general.architecture")
    data = bytearray(GOOD)
    data[key - 8 : key] = (2**40).to_bytes(8, "little")
    with pytest.raises(CheckpointError, match="limit is 1024"):
        GGUFFile(write(tmp_path, bytes(data)))
