"""Gemma 4's conformer: log-mel frames of a sound to soft tokens, one for each four frames.

Attention is local: a query sees itself and some frames before it, with relative positions as in
Transformer-XL (Dai et al., 2019) and scores capped by a tanh.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from ingle.contracts.encoder_config import AudioTowerConfig
from ingle.contracts.weights import Dense, WeightSource
from ingle.layers.clipped import ClippedLinear
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm
from ingle.models.tower_reader import TowerReader

BINS = 128
_NOTHING = -1e9  # the score of a key that is not seen


class Subsampling:
    """3 x 3 convolutions of stride 2 over frames and bins, each with a LayerNorm over channels and a ReLU."""

    def __init__(self, read: TowerReader, config: AudioTowerConfig) -> None:
        first, second = config.channels
        name = "audio_tower.subsample_conv_projection"
        self._eps = config.norm_eps
        self._layers: list[tuple[Linear, mx.array]] = []
        for i, (outputs, inputs) in enumerate(((first, 1), (second, first))):
            kernel = read.kernel(f"{name}.layer{i}.conv.weight", outputs, inputs, 3, 3)
            linear = Linear(Dense(kernel.reshape(outputs, -1)), read.dtype)
            self._layers.append((linear, read.tensor(f"{name}.layer{i}.norm.weight", outputs)))
        size = BINS // 4 * second
        self._project = read.linear(f"{name}.input_proj_linear", config.hidden_size, size)

    def __call__(self, mel: mx.array) -> mx.array:
        """[frames, 128] -> [ceil(ceil(frames / 2) / 2), hidden]"""
        x = mel[..., None]
        for linear, norm in self._layers:
            x = mx.maximum(mx.fast.layer_norm(linear(_unfolded(x)), norm, None, self._eps), 0)
        return self._project(x.reshape(x.shape[0], -1))


def _unfolded(x: mx.array) -> mx.array:
    """[rows, columns, channels] -> [rows / 2, columns / 2, 9 * channels]: what each 3 x 3 window sees."""
    rows, columns = -(-x.shape[0] // 2), -(-x.shape[1] // 2)
    x = mx.pad(x, [(1, 2), (1, 2), (0, 0)])
    windows = [x[i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)]
    return mx.concatenate(windows, axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class FeedForward:
    """x + weight * norm(down(silu(up(norm(x)))))"""

    pre_norm: RMSNorm
    up: ClippedLinear
    down: ClippedLinear
    post_norm: RMSNorm
    weight: float

    def __call__(self, x: mx.array) -> mx.array:
        inner = self.up(self.pre_norm(x))
        inner = inner * mx.sigmoid(inner)
        return x + self.weight * self.post_norm(self.down(inner))


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """x + end(silu(norm(depthwise(glu(start(norm(x)))))))), over the frames before and at each frame."""

    pre_norm: RMSNorm
    start: ClippedLinear
    kernel: mx.array  # [hidden, taps]
    norm: RMSNorm
    end: ClippedLinear

    def __call__(self, x: mx.array) -> mx.array:
        value, gate = mx.split(self.start(self.pre_norm(x)), 2, axis=-1)
        y, taps = value * mx.sigmoid(gate), self.kernel.shape[1]
        padded = mx.pad(y, [(taps - 1, 0), (0, 0)])
        shifted = [padded[i : i + x.shape[0]] * self.kernel[:, i] for i in range(taps)]
        y = self.norm(functools.reduce(operator.add, shifted))
        return x + self.end(y * mx.sigmoid(y))


class LocalAttention:
    """Queries in chunks, each of which looks at its own frames and `past` before them."""

    def __init__(self, read: TowerReader, name: str, config: AudioTowerConfig) -> None:
        c = self._config = config
        self._dim = c.hidden_size // c.num_heads
        size, mixed = c.hidden_size, c.num_heads * self._dim
        self._q, self._k, self._v = (
            read.clipped_linear(f"{name}.{part}_proj", mixed, size) for part in ("q", "k", "v")
        )
        self._out = read.clipped_linear(f"{name}.post", size, mixed)
        # Factors of queries and keys: softplus(0) = ln 2 and softplus(1) = ln(1 + e) are divided out.
        scale = read.tensor(f"{name}.per_dim_scale", self._dim).astype(mx.float32)
        self._query_scale = mx.logaddexp(scale, mx.array(0.0)) * (self._dim**-0.5 / math.log(2))
        self._key_scale = math.log(1 + math.e) / math.log(2)
        relative = read.linear(f"{name}.relative_k_proj", mixed, size)
        places = relative(_sinusoids(self._context // 2, size, read.dtype))
        self._relative = places.astype(mx.float32).reshape(-1, c.num_heads, self._dim).transpose(1, 2, 0)
        mx.eval(self._query_scale, self._relative)

    @property
    def _context(self) -> int:
        return self._config.chunk + self._config.past

    def __call__(self, x: mx.array) -> mx.array:
        """[frames, hidden] -> [frames, hidden]; scores in float32."""
        c, count, context = self._config, x.shape[0], self._context
        chunks = -(-count // c.chunk)

        def heads(y: mx.array) -> mx.array:
            return y.astype(mx.float32).reshape(count, c.num_heads, self._dim)

        behind = chunks * c.chunk - count
        queries = mx.pad(heads(self._q(x)) * self._query_scale, [(0, behind), (0, 0), (0, 0)])
        queries = queries.reshape(chunks, c.chunk, c.num_heads, self._dim).transpose(2, 0, 1, 3)
        at = (
            mx.arange(chunks)[:, None] * c.chunk + mx.arange(context)[None]
        )  # in frames with `past` before them
        keys, values = (
            mx.pad(y, [(c.past, behind), (0, 0), (0, 0)])[at].transpose(2, 0, 1, 3)
            for y in (heads(self._k(x)) * self._key_scale, heads(self._v(x)))
        )
        scores = queries @ keys.swapaxes(-1, -2) + self._shifted(queries @ self._relative[:, None])
        scores = c.logit_cap * mx.tanh(scores / c.logit_cap)
        query_at = (mx.arange(chunks)[:, None] * c.chunk + mx.arange(c.chunk))[..., None]
        key_at = (at - c.past)[:, None]
        seen = (key_at <= query_at) & (key_at > query_at - c.past) & (key_at >= 0) & (key_at < count)
        weights = mx.softmax(mx.where(seen, scores, _NOTHING), axis=-1, precise=True)
        mixed = (weights @ values).transpose(1, 2, 0, 3).reshape(chunks * c.chunk, -1)[:count]
        return self._out(mixed.astype(x.dtype))

    def _shifted(self, scores: mx.array) -> mx.array:
        """Scores by distance [.., chunk, distances] to scores by key [.., chunk, context]."""
        context, lead = self._context, scores.shape[:-1]
        padded = mx.pad(scores, [(0, 0)] * len(lead) + [(0, context + 1 - scores.shape[-1])])
        flat = padded.reshape(*lead[:-1], -1)[..., : lead[-1] * context]
        return flat.reshape(*lead, context)


def _sinusoids(most: int, size: int, dtype: mx.Dtype) -> mx.array:
    """Of the distances `most`, .., 1, 0: [most + 1, size], sines then cosines, wavelengths to 10,000."""
    half = size // 2
    step = math.log(10_000.0) / max(half - 1, 1)
    angles = mx.arange(most, -1, -1)[:, None] * mx.exp(mx.arange(half) * -step)
    return mx.concatenate([mx.sin(angles), mx.cos(angles)], axis=-1).astype(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class ConformerLayer:
    """Half a feed-forward, attention, convolution, half a feed-forward, norm (Gulati et al., 2020)."""

    first: FeedForward
    pre_norm: RMSNorm
    attention: LocalAttention
    post_norm: RMSNorm
    convolution: Convolution
    second: FeedForward
    output_norm: RMSNorm

    def __call__(self, x: mx.array) -> mx.array:
        x = self.first(x)
        x = x + self.post_norm(self.attention(self.pre_norm(x)))
        return self.output_norm(self.second(self.convolution(x)))


class AudioTower:
    """{"mel": [frames, 128]} -> [soft tokens, hidden of the decoder]. Frames that are not real are zero."""

    def __init__(self, config: AudioTowerConfig, source: WeightSource, dtype: mx.Dtype, outputs: int) -> None:
        c, self._dtype = config, dtype
        read = TowerReader(source, dtype, c.norm_eps, c.clipped)
        self._subsampling = Subsampling(read, c)
        self._layers = [_layer(read, f"audio_tower.layers.{i}", c) for i in range(c.num_layers)]
        self._output = read.linear("audio_tower.output_proj", c.output_size, c.hidden_size, bias=True)
        self._projector = read.projector("embed_audio", outputs, c.output_size)

    def __call__(self, features: Mapping[str, mx.array]) -> mx.array:
        return self._projector(self.encoded(features))

    def encoded(self, features: Mapping[str, mx.array]) -> mx.array:
        """Before the projector: [soft tokens, output_size]."""
        mel = features["mel"]
        real = int(
            cast("int", mx.sum(mel[:, -1] != 0).item())
        )  # the topmost filter is empty: log(1e-3) in real frames
        x = self._subsampling(mel[:real].astype(self._dtype))
        for layer in self._layers:
            x = layer(x)
            mx.eval(x)
        return self._output(x)


def _layer(read: TowerReader, name: str, config: AudioTowerConfig) -> ConformerLayer:
    size, taps = config.hidden_size, config.kernel

    def feed_forward(part: str) -> FeedForward:
        return FeedForward(
            pre_norm=read.norm(f"{part}.pre_layer_norm", size),
            up=read.clipped_linear(f"{part}.ffw_layer_1", 4 * size, size),
            down=read.clipped_linear(f"{part}.ffw_layer_2", size, 4 * size),
            post_norm=read.norm(f"{part}.post_layer_norm", size),
            weight=config.residual_weight,
        )

    convolution = f"{name}.lconv1d"
    return ConformerLayer(
        first=feed_forward(f"{name}.feed_forward1"),
        pre_norm=read.norm(f"{name}.norm_pre_attn", size),
        attention=LocalAttention(read, f"{name}.self_attn", config),
        post_norm=read.norm(f"{name}.norm_post_attn", size),
        convolution=Convolution(
            pre_norm=read.norm(f"{convolution}.pre_layer_norm", size),
            start=read.clipped_linear(f"{convolution}.linear_start", 2 * size, size),
            kernel=read.kernel(f"{convolution}.depthwise_conv1d.weight", size, 1, taps)[..., 0],
            norm=read.norm(f"{convolution}.conv_norm", size),
            end=read.clipped_linear(f"{convolution}.linear_end", size, size),
        ),
        second=feed_forward(f"{name}.feed_forward2"),
        output_norm=read.norm(f"{name}.norm_out", size),
    )
