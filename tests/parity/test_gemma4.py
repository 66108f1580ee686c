"""Gemma 4 in all its structures gives the reference's numbers: text, pictures, clips, sounds, however cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ingle import compose
from ingle.cache.arrays import ArrayState
from ingle.contracts.graph import ModelGraph, Phase, PhaseGroup, SoftTokens
from ingle.contracts.media import Block
from ingle.contracts.request import ContentSpan, Request, SamplingParams
from ingle.errors import CheckpointError
from ingle.forward.packed import forward
from ingle.weights.checkpoint import open_checkpoint
from support.collect import Collector
from support.gemma4 import CASES, SIZES, case, prompt

HERE = Path(__file__).parent
NAMES = ("gemma4_e", "gemma4_dense", "gemma4_moe", "gemma4_flat")
TEXT, MEDIA, FEATURES = 5e-5, 1e-4, 1e-5  # absolute, on logits of standard deviation about 1


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def golden(name: str) -> dict[str, Any]:
    return dict(np.load(HERE / "goldens" / f"{name}.npz"))


@pytest.fixture(scope="module")
def graph(name: str) -> ModelGraph:
    return compose.load_graph(HERE / "fixtures" / name, "float32")[0]


def difference(graph: ModelGraph, hidden: mx.array, expected: np.ndarray) -> float:
    return float(np.abs(np.array(graph.logits(hidden)) - expected).max())


def hidden_of(graph: ModelGraph, ids: list[int], borders: list[int], media: Any = None) -> mx.array:
    """Final hidden states of one prompt computed in windows. `media`: a `Case`."""
    state = graph.make_state(1)
    parts: list[mx.array] = []
    for start, end in zip([0, *borders], [*borders, len(ids)], strict=True):
        soft: list[SoftTokens] = []
        ends = list(range(start + 1, end + 1))
        for (first, last), block in zip(media.spans, media.blocks, strict=True) if media else ():
            low, high = max(first, start), min(last, end)
            if low < high:
                soft.append(SoftTokens(low - start, graph.encode(block)[low - first : high - first]))
                if block.kind != "audio" and graph.whole_block:
                    ends[low - start : high - start] = [last] * (high - low)
        group = PhaseGroup(
            Phase.WINDOW,
            mx.array([ids[start:end]], mx.int32),
            state,
            soft=soft,
            ends=mx.array([ends], mx.int32) if graph.whole_block else None,
        )
        parts.append(forward(graph, [group])[0])
    return mx.concatenate(parts, axis=1)[0]


@pytest.mark.parametrize("text", SIZES)
def test_text(name: str, graph: ModelGraph, golden: dict[str, Any], text: str) -> None:
    hidden = hidden_of(graph, prompt(SIZES[text]), [])
    assert difference(graph, hidden, golden[f"{text}.logits"]) < (TEXT if name == "gemma4_e" else 1e-5)


@pytest.mark.parametrize("borders", [[1], [17, 23], list(range(1, 40))])
def test_text_in_windows(graph: ModelGraph, golden: dict[str, Any], borders: list[int]) -> None:
    hidden = hidden_of(graph, prompt(SIZES["long"]), borders)
    assert difference(graph, hidden, golden["long.logits"]) < TEXT


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_features(name: str, graph: ModelGraph, golden: dict[str, Any], kind: str) -> None:
    if f"features.{kind}" not in golden:
        pytest.skip("no such encoder")
    block = case(kind, name == "gemma4_flat").blocks[0]
    expected = golden[f"features.{kind}"]
    assert np.abs(np.array(graph.encode(block)) - expected).max() < FEATURES


@pytest.mark.parametrize("media", CASES)
def test_media(name: str, graph: ModelGraph, golden: dict[str, Any], media: str) -> None:
    if f"{media}.logits" not in golden:
        pytest.skip("no such encoder")
    inputs = case(media, name == "gemma4_flat")
    hidden = hidden_of(graph, inputs.ids, [], inputs)
    assert difference(graph, hidden, golden[f"{media}.logits"]) < MEDIA


@pytest.mark.parametrize("media", ["image", "images", "video", "mixed"])
def test_media_cut_at_every_legal_border(
    name: str, graph: ModelGraph, golden: dict[str, Any], media: str
) -> None:
    if f"{media}.logits" not in golden:
        pytest.skip("no such encoder")
    inputs = case(media, name == "gemma4_flat")
    pictures = [
        span for span, block in zip(inputs.spans, inputs.blocks, strict=True) if block.kind != "audio"
    ]
    for border in range(1, len(inputs.ids)):
        if graph.whole_block and any(start < border < end for start, end in pictures):
            continue
        hidden = hidden_of(graph, inputs.ids, [border], inputs)
        assert difference(graph, hidden, golden[f"{media}.logits"]) < MEDIA, border


def test_arrays_give_the_same(name: str, graph: ModelGraph, golden: dict[str, Any]) -> None:
    """The form that GPUs use, on this CPU."""
    inputs = case("mixed" if "mixed.logits" in golden else "images", name == "gemma4_flat")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(graph), "make_state", lambda self, rows: ArrayState(self.layout, rows, mx.float32))
        hidden = hidden_of(graph, inputs.ids, [], inputs)
    media = "mixed" if "mixed.logits" in golden else "images"
    assert difference(graph, hidden, golden[f"{media}.logits"]) < MEDIA


def test_skipped_tokens_change_nothing(name: str, graph: ModelGraph) -> None:
    """Prompt tokens whose logits nobody asks for do not run through layers that keep nothing of them."""
    ids = mx.array([prompt(SIZES["long"])], mx.int32)
    whole = forward(graph, [PhaseGroup(Phase.WINDOW, ids, graph.make_state(1))])[0]
    state, other = graph.make_state(1), graph.make_state(1)
    last, none = forward(
        graph,
        [PhaseGroup(Phase.WINDOW, ids, state, wanted=1), PhaseGroup(Phase.WINDOW, ids, other, wanted=0)],
    )
    assert last.shape == (1, 1, whole.shape[2]) and none.shape[1] == 0
    assert mx.array_equal(last[0, 0], whole[0, -1]).item()
    more = mx.array([[5]], mx.int32)
    first, second = (forward(graph, [PhaseGroup(Phase.DECODE, more, s)])[0] for s in (state, other))
    assert mx.array_equal(first, second).item()


def test_both_dialects_give_one_configuration(name: str, tmp_path: Path) -> None:
    source = HERE / "fixtures" / name
    shutil.copy(source / "model.safetensors", tmp_path)
    shutil.copy(source / "config.older.json", tmp_path / "config.json")
    assert open_checkpoint(tmp_path).config == open_checkpoint(source).config


def test_requests_share_steps(name: str, golden: dict[str, Any]) -> None:
    """Text and different media in one batch: everybody gets the reference's tokens."""
    flat = name == "gemma4_flat"
    loaded = compose.load(HERE / "fixtures" / name, name=name)
    got = Collector()
    asked: dict[str, int] = {}
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    for text, size in SIZES.items():
        request = Request(id=text, prompt=tuple(prompt(size)), sampling=greedy)
        loaded.engine.submit(request, got)
    one = SamplingParams(temperature=0.0, max_tokens=1)
    for media in CASES:
        if f"{media}.logits" in golden:
            inputs = case(media, flat)
            spans = tuple(
                ContentSpan(start, end, block.digest, block)
                for (start, end), block in zip(inputs.spans, inputs.blocks, strict=True)
            )
            loaded.engine.submit(
                Request(id=media, prompt=tuple(inputs.ids), sampling=one, content=spans), got
            )
            asked[media] = int(golden[f"{media}.logits"][-1].argmax())
    for text in SIZES:
        assert got.wait(text).reason == "length"
        assert got.tokens(text) == golden[f"{text}.greedy"].tolist()
    for media, token in asked.items():
        assert got.wait(media).reason == "length"
        assert got.tokens(media) == [token]
    stats = loaded.engine.stats()
    assert stats.failed_steps == 0 and stats.encoded_media > 0
    loaded.engine.close()


def changed(name: str, folder: Path, change: Any) -> Path:
    shutil.copytree(HERE / "fixtures" / name, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def without(folder: Path, part: str) -> None:
    tensors = dict(mx.load(str(folder / "model.safetensors")).items())  # type: ignore[union-attr]
    kept = {key: value for key, value in tensors.items() if part not in key}
    mx.save_safetensors(str(folder / "model.safetensors"), kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["text_config"].update(use_bidirectional_attention="all"), "use_bidirectional_attention"),
        (lambda c: c["text_config"].update(num_kv_shared_layers=8), "8 layers share KV"),
        (lambda c: c["text_config"].update(num_kv_shared_layers=6), "no full layer before"),
        (lambda c: c["text_config"].update(hidden_size_per_layer_input=16), "embed_tokens_per_layer"),
        (lambda c: c["text_config"]["per_layer_config"].update({"0": {"head_dim": 4}}), "per_layer_config"),
        (lambda c: c["text_config"]["per_layer_config"].pop("7"), "the same for every full layer"),
        (lambda c: c["vision_config"].update(patch_size=14), "patch_size is 14; supported: 16"),
        (lambda c: c["vision_config"]["rope_parameters"].update(rope_type="default"), "supported: axial"),
        (lambda c: c["vision_config"].update(num_hidden_layers=3), "vision_tower.encoder.layers.2"),
        (lambda c: c["vision_config"].update(position_embedding_size=64), "position_embedding_table"),
        (lambda c: c["audio_config"].update(hidden_act="gelu"), "hidden_act is 'gelu'; supported: silu"),
        (lambda c: c["audio_config"].update(subsampling_conv_channels=[64, 4]), "subsampling_conv_channels"),
        (lambda c: c["audio_config"].update(conv_kernel_size=7), "depthwise_conv1d"),
        (lambda c: c.update(model_type="gemma5"), "model_type is 'gemma5'; supported: .*gemma4_unified"),
    ],
)
def test_what_we_do_not_have_is_refused_at_load(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        compose.load_graph(changed("gemma4_e", tmp_path, change))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gemma4_e", "vision_tower"),
        ("gemma4_e", "embed_audio"),
        ("gemma4_e", "layers.1.feed_forward2.ffw_layer_1.input_min"),
        ("gemma4_e", "per_layer_model_projection"),
        ("gemma4_e", "layers.6.layer_scalar"),
        ("gemma4_moe", "router.scale"),
        ("gemma4_moe", "experts.down_proj"),
        ("gemma4_flat", "pos_embedding"),
    ],
)
def test_half_a_checkpoint_is_refused_at_load(name: str, part: str, tmp_path: Path) -> None:
    folder = changed(name, tmp_path, lambda config: None)
    without(folder, part)
    with pytest.raises(CheckpointError, match=part.rsplit(".", 1)[-1]):
        compose.load_graph(folder)


def test_keys_of_sharing_layers_may_be_there(tmp_path: Path) -> None:
    folder = changed("gemma4_e", tmp_path, lambda config: None)
    tensors = dict(mx.load(str(folder / "model.safetensors")).items())  # type: ignore[union-attr]
    tensors["model.language_model.layers.5.self_attn.k_proj.weight"] = mx.ones((8, 32))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    ids = prompt(SIZES["short"])
    more, plain = (
        hidden_of(compose.load_graph(f)[0], ids, []) for f in (folder, HERE / "fixtures" / "gemma4_e")
    )
    assert mx.array_equal(more, plain).item()


def test_features_of_another_size_are_an_error(graph: ModelGraph, name: str) -> None:
    block = case("image", name == "gemma4_flat").blocks[0]
    with pytest.raises(ValueError, match="give 6 soft tokens, not 7"):
        graph.encode(Block("image", 7, b"", block.arrays))
    with pytest.raises(ValueError, match="no encoder for audio"):
        graph.encode(Block("audio", 7, b"", {}))


def as_mlx_writes_it(source: Path, folder: Path, *, codes: bool) -> Path:
    """MLX's names and layout: attention and MLPs in 4 bits, down projections in 8, other tensors dense.

    Without `codes` the same values, dense.
    """
    config = json.loads((source / "config.json").read_text())
    settings: dict[str, Any] = {"group_size": 32, "bits": 4}
    tensors: dict[str, mx.array] = {}

    def put(name: str, values: mx.array) -> None:
        stem, _, kind = name.rpartition(".")
        text = name.startswith("language_model.") and kind == "weight" and "per_layer" not in name
        if not text or values.ndim < 2 or values.shape[-1] % 32:
            tensors[name] = values
            if text and values.ndim >= 2:
                settings[stem] = False
            return
        bits = 8 if "down_proj" in name else 4
        parts = mx.quantize(values.astype(mx.float32), group_size=32, bits=bits)
        if bits == 8:
            settings[stem] = {"group_size": 32, "bits": 8}
        if codes:
            tensors.update(zip((name, f"{stem}.scales", f"{stem}.biases"), parts, strict=True))
        else:
            tensors[name] = mx.dequantize(*parts, group_size=32, bits=bits)

    for name, values in dict(mx.load(str(source / "model.safetensors")).items()).items():  # type: ignore[union-attr]
        name = name.removeprefix("model.").replace("language_model.", "language_model.model.")
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj") + "switch_glu"
            gate, up = mx.split(values, 2, axis=1)
            put(f"{stem}.gate_proj.weight", gate)
            put(f"{stem}.up_proj.weight", up)
        elif name.endswith("experts.down_proj"):
            put(name.replace("down_proj", "switch_glu.down_proj.weight"), values)
        elif values.ndim == 4:  # convolutions: channels last
            put(name, mx.contiguous(mx.moveaxis(values, 1, -1)))
        elif "depthwise" in name:
            put(name, mx.contiguous(values.swapaxes(1, 2)))
        else:
            put(name, values)
    if codes:
        config["quantization"] = settings
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def test_checkpoints_of_mlx(name: str, tmp_path: Path, golden: dict[str, Any]) -> None:
    """Mixed widths and the other layout: the model that their values say, features as they were."""
    source = HERE / "fixtures" / name
    (coded, config), (dense, _) = (
        compose.load_graph(as_mlx_writes_it(source, tmp_path / str(codes), codes=codes), "float32")
        for codes in (True, False)
    )
    assert config == open_checkpoint(source).config
    media = "mixed" if "mixed.logits" in golden else "images"
    inputs = case(media, name == "gemma4_flat")
    logits = np.array(dense.logits(hidden_of(dense, inputs.ids, [], inputs)))
    # Products with codes may round activations to bfloat16.
    assert difference(coded, hidden_of(coded, inputs.ids, [], inputs), logits) < 0.15
    assert np.abs(logits - golden[f"{media}.logits"]).max() > 1e-3  # the codes are in use
    block = inputs.blocks[0]
    expected = golden[f"features.{block.kind}"] if media == "mixed" else None
    if expected is not None:
        assert np.abs(np.array(coded.encode(block)) - expected).max() < FEATURES
