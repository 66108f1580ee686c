"""What turns features into soft tokens: the parts of a model besides its decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.encoder_config import AudioTowerConfig, EncodersConfig, VisionTowerConfig
from ingle.contracts.media import Block

MAX_BLOCK = 1120  # soft tokens of the largest picture
_MAX_PATCHES = 9 * MAX_BLOCK
_MAX_FRAMES = 3000  # of mel, 30 s


@dataclass(frozen=True, slots=True, eq=False)
class Encoders:
    """An encoder for each set of features that blocks bring: "patches", "mel" or "raw"."""

    by_features: Mapping[str, Callable[[Mapping[str, mx.array]], mx.array]]

    def encode(self, block: Block) -> mx.array:
        """See `contracts.graph.ModelGraph.encode`."""
        arrays = {name: mx.array(values) for name, values in block.arrays.items()}
        for name, encoder in self.by_features.items():
            if name in arrays:
                features = encoder(arrays)
                if features.shape[0] != block.soft_tokens:
                    raise ValueError(
                        f"{block.kind} features give {features.shape[0]} soft tokens, not {block.soft_tokens}"
                    )
                return features
        raise ValueError(f"this model has no encoder for {block.kind}")


def encoder_bytes(config: EncodersConfig, hidden_size: int) -> int:
    """The most that encoding one block holds beside the weights; layers are evaluated one by one."""
    most = 0
    vision, audio = config.vision, config.audio
    if isinstance(vision, VisionTowerConfig):
        width = (
            10 * vision.hidden_size + 4 * vision.num_heads * vision.head_dim + 6 * vision.intermediate_size
        )
        most = 4 * _MAX_PATCHES * (width + 768)
    elif vision is not None:
        most = 4 * MAX_BLOCK * (3 * 6912 + 6 * vision.width)
    if isinstance(audio, AudioTowerConfig):
        convolved = 128 * 64 * audio.channels[0] // 128 * 5  # of one frame, with what the convolution unfolds
        most = max(most, 4 * _MAX_FRAMES * (convolved + 24 * audio.hidden_size))
    return most + 4 * MAX_BLOCK * hidden_size
