"""A tiny random decoder with every structure the packed forward must serve, and two ways to break it.

Layer 0 is sliding, layer 1 full, layer 2 owns no KV and reads layer 1's, layer 3 is recurrent (where
asked for); every layer also takes a per-layer token input. Its arithmetic is plain MLX, so that these
tests say nothing about kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from ingle.cache.arrays import ArrayState
from ingle.contracts.cache import ArrayView, KVKind, Retention, RowState, StateLayout
from ingle.contracts.graph import GraphLayer, GroupPass, Projected
from ingle.contracts.media import Block

HIDDEN, HEADS, DIM, SIDE, VOCAB, WINDOW, SLACK = 32, 2, 16, 8, 61, 8, 4
POISON = 59  # computing this token raises, as a broken kernel would
NOT_A_NUMBER = 60  # the token after this one has no finite logits


class ToyLayer:
    fused = None
    kv_index = 0

    def __init__(self, index: int, donor: int | None, window: int | None, seed: int) -> None:
        self._index, self._donor, self._window = index, donor, window
        keys = mx.random.split(mx.random.key(seed), 8)

        def matrix(number: int, outputs: int, inputs: int) -> mx.array:
            return mx.random.normal((inputs, outputs), key=keys[number]) / math.sqrt(inputs)

        self._q, self._o = matrix(0, HEADS * DIM, HIDDEN), matrix(1, HIDDEN, HEADS * DIM)
        self._k, self._v = matrix(2, HEADS * DIM, HIDDEN), matrix(3, HEADS * DIM, HIDDEN)
        self._up, self._down = matrix(4, 2 * HIDDEN, HIDDEN), matrix(5, HIDDEN, 2 * HIDDEN)
        self._side = matrix(6, HIDDEN, SIDE)

    def before(self, hidden: mx.array) -> Projected:
        x = _norm(hidden)

        def heads(y: mx.array) -> mx.array:
            return y.reshape(-1, HEADS, DIM)

        if self._donor is not None:
            return Projected(heads(x @ self._q), None, None)
        return Projected(heads(x @ self._q), heads(x @ self._k), heads(x @ self._v))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        queries = _rotate(projected.queries, run.offsets)
        if self._donor is None:
            assert projected.keys is not None and projected.values is not None
            keys = _rotate(projected.keys, run.offsets)
            view = run.group.state.write(self._index, keys, projected.values)
            run.shared_kv[self._index] = view
        else:
            view = run.donor(self._donor)
        assert isinstance(view, ArrayView)
        scores = (queries @ view.keys.swapaxes(-1, -2)) / math.sqrt(DIM)
        weights = mx.softmax(mx.where(_seen(view, queries.shape[2], self._window), scores, -mx.inf), axis=-1)
        mixed = weights @ view.values
        return mixed.transpose(0, 2, 1, 3).reshape(run.group.rows, run.group.length, -1)

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        assert side is not None
        hidden = hidden + mixed @ self._o
        return hidden + mx.tanh(_norm(hidden) @ self._up) @ self._down + side @ self._side


class ToyRecurrence:
    """state = 0.9 * state + input: what linear attention and state-space layers do, in one line."""

    fused = None
    kv_index = 0

    def __init__(self, seed: int) -> None:
        keys = mx.random.split(mx.random.key(seed), 2)
        self._in = mx.random.normal((HIDDEN, HIDDEN), key=keys[0]) / math.sqrt(HIDDEN)
        self._out = mx.random.normal((HIDDEN, HIDDEN), key=keys[1]) / math.sqrt(HIDDEN)

    def before(self, hidden: mx.array) -> Projected:
        return Projected((_norm(hidden) @ self._in)[:, None], None, None)

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        state = run.group.state.carried(0)
        group = run.group
        out: list[mx.array] = []
        for t in range(group.length):
            state = 0.9 * state + projected.queries[:, 0, t]
            out.append(state)
        behind = mx.stack(out, axis=1)
        group.state.carry(0, behind[:, group.length - group.boundaries :])
        return behind

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        return hidden + mx.tanh(mixed) @ self._out


class ToyGraph:
    def __init__(self, seed: int = 0, vocab: int = VOCAB, *, recurrent: bool = False) -> None:
        keys = mx.random.split(mx.random.key(seed + 100), 3)
        self._table = mx.random.normal((vocab, HIDDEN), key=keys[0])
        self._sides = mx.random.normal((vocab, 4, SIDE), key=keys[1])
        self._layers: list[GraphLayer] = [
            ToyLayer(0, None, WINDOW, seed + 1),
            ToyLayer(1, None, None, seed + 2),
            ToyLayer(2, 1, None, seed + 3),
        ]
        if recurrent:
            self._layers.append(ToyRecurrence(seed + 4))
        self.layout = StateLayout.of(
            [KVKind(1, HEADS, DIM, Retention(WINDOW, SLACK)), KVKind(1, HEADS, DIM, Retention())],
            ((HIDDEN,),) if recurrent else (),
        )
        mx.eval(self._table, self._sides, [vars(layer) for layer in self._layers])

    @property
    def layers(self) -> Sequence[GraphLayer]:
        return self._layers

    @property
    def stateful_layers(self) -> int:
        return 4 if len(self._layers) == 4 else 2

    @property
    def whole_block(self) -> int:
        return 0

    def encode(self, block: Block) -> mx.array:
        key = mx.random.key(int.from_bytes(block.digest[:4], "big"))
        return mx.random.normal((block.soft_tokens, HIDDEN), key=key)

    def embed(self, ids: mx.array) -> mx.array:
        if mx.any(ids == POISON).item():
            raise RuntimeError("poisoned token")
        return mx.where((ids == NOT_A_NUMBER)[:, None], mx.nan, self._table[ids])

    embedding_parts = None

    def side_inputs(self, ids: mx.array, hidden: mx.array) -> mx.array | None:
        return self._sides[ids]

    def norm(self, hidden: mx.array) -> mx.array:
        return _norm(hidden)

    def logits(self, hidden: mx.array) -> mx.array:
        tokens = mx.arange(self._table.shape[0])  # the toy never says its two traps itself
        blocked = mx.where((tokens == POISON) | (tokens == NOT_A_NUMBER), -1e4, 0.0)
        return 2.0 * hidden @ self._table.T + blocked

    def make_state(self, rows: int) -> RowState:
        return ArrayState(self.layout, rows, mx.float32)

    @property
    def step_bytes(self) -> Callable[[int, int], int]:
        return lambda tokens, rows: 4096 * (tokens + rows)


def _norm(x: mx.array) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _rotate(x: mx.array, offsets: Sequence[int]) -> mx.array:
    half = DIM // 2
    inv_freq = 1.0 / mx.power(100.0, mx.arange(half) / half)
    positions = mx.array(list(offsets))[:, None] + mx.arange(x.shape[2])
    angles = positions[:, None, :, None] * inv_freq
    a, b = mx.split(x, 2, axis=-1)
    cos, sin = mx.cos(angles), mx.sin(angles)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _seen(view: ArrayView, length: int, window: int | None) -> mx.array:
    queries = (mx.array(view.offsets)[:, None] + mx.arange(length))[:, None, :, None]
    keys = (mx.array(view.bases)[:, None] + mx.arange(view.keys.shape[2]))[:, None, None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
