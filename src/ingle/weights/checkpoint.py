"""Open a model on disk, whatever its format: configuration, weights and text assets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingle.contracts.model_config import ModelConfig
from ingle.contracts.text_assets import TextAssets
from ingle.contracts.weights import WeightSource
from ingle.errors import CheckpointError
from ingle.weights import gguf_config, hf_config, hf_text
from ingle.weights.fields import Fields
from ingle.weights.gguf import GGUFFile
from ingle.weights.gguf_weights import GGUFWeights
from ingle.weights.hf_weights import HFWeights, normal_name
from ingle.weights.quantization import read_quantization
from ingle.weights.safetensors import SafetensorsFolder, read_json


@dataclass(frozen=True, slots=True)
class Checkpoint:
    config: ModelConfig
    weights: WeightSource
    text: TextAssets | None  # None: the checkpoint brings no tokenizer
    description: str  # for people: "GGUF Q4_1"


def open_checkpoint(path: Path) -> Checkpoint:
    """A `.gguf` file, or a folder with config.json, safetensors and tokenizer.json.

    Reads headers and settings; tensors are read when they are taken.

    Raises:
        CheckpointError: nothing usable there, or a file that is broken or not supported.
    """
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        return _open_gguf(path)
    raise CheckpointError(f"{path} does not exist")


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    where = str(path)
    factors: tuple[float, ...] = ()
    if (table := file.tensors.get("rope_freqs.weight")) is not None:
        if table.type.name != "F32":
            raise CheckpointError(f"{where}: tensor 'rope_freqs.weight' is {table.type.name}, expected F32")
        factors = tuple(file.data(table).view("<f4").tolist())
    tied = "output.weight" not in file.tensors
    config = gguf_config.model_config(file.metadata, where, tied_head=tied, rope_factors=factors)
    has_tokenizer = "tokenizer.ggml.model" in file.metadata
    return Checkpoint(
        config,
        GGUFWeights(file, config),
        gguf_config.text_assets(file.metadata, where) if has_tokenizer else None,
        f"GGUF {_main_type(file)}",
    )


def _main_type(file: GGUFFile) -> str:
    """The block format that most layer weights are in."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        if tensor.name.startswith("blk."):
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.nbytes
    return max(sizes, key=lambda name: sizes[name], default="without layers")


def _open_folder(folder: Path) -> Checkpoint:
    settings = read_json(folder / "config.json")
    where = str(folder / "config.json")
    generation = hf_text.optional_json(folder / "generation_config.json")
    ends = Fields(generation, str(folder / "generation_config.json")).token_ids("eos_token_id")
    config = hf_config.model_config(settings, where, eos_token_ids=ends)
    quantization = read_quantization(settings, where, normal_name)
    weights = HFWeights(SafetensorsFolder(folder), quantization, norms_plus_one=config.family == "gemma3")
    text = None
    if (folder / "tokenizer.json").is_file():
        text = hf_text.text_assets(
            folder,
            bos_token_id=config.bos_token_id,
            eos_token_ids=config.eos_token_ids,
            generation=generation,
        )
    quantized = settings.get("quantization") or settings.get("quantization_config")
    return Checkpoint(config, weights, text, "safetensors" + (", MLX quantised" if quantized else ""))
