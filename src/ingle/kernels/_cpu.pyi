from collections.abc import Sequence

import mlx.core as mx

def isa() -> str: ...
def isas() -> list[str]: ...
def set_isa(name: str) -> None: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...

class Packed:
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Rope: ...
class Layer: ...

class Draw:
    def __init__(
        self, temperature: float, top_k: int, top_p: float, min_p: float, key_high: int, key_low: int
    ) -> None: ...

def pack_codes(codes: mx.array, scales: mx.array, biases: mx.array, bits: int, group_size: int) -> Packed: ...
def pack_floats(values: mx.array) -> Packed: ...
def linear(
    x: mx.array,
    weights: Sequence[Packed],
    biases: Sequence[mx.array | None],
    residual: mx.array | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> mx.array: ...
def gated_linear(
    x: mx.array,
    gate: Packed,
    up: Packed,
    gate_bias: mx.array | None,
    up_bias: mx.array | None,
    activation: str,
) -> mx.array: ...
def expert_linear(x: mx.array, experts: Sequence[Packed], ends: mx.array) -> mx.array: ...
def embed(ids: mx.array, weight: Packed, scale: float) -> mx.array: ...
def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array: ...
def rope(x: mx.array, offsets: Sequence[int], inv_freq: mx.array, scale: float) -> mx.array: ...
def gate(gate: mx.array, up: mx.array, activation: str) -> mx.array: ...
def append(
    keys: mx.array, values: mx.array, new_keys: mx.array, new_values: mx.array, starts: Sequence[int]
) -> list[mx.array]: ...
def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    bases: Sequence[int],
    offsets: Sequence[int],
    ends: mx.array | None,
    scale: float,
    window: int,
    softcap: float,
) -> mx.array: ...
def sample(logits: mx.array, draws: Sequence[Draw]) -> mx.array: ...
def make_rope(inv_freq: mx.array, scale: float) -> Rope: ...
def make_layer(
    *,
    input_norm: mx.array,
    mlp_norm: mx.array,
    q_norm: mx.array | None,
    k_norm: mx.array | None,
    mixed_norm: mx.array | None,
    output_norm: mx.array | None,
    eps: float,
    qkv: Sequence[Packed],
    qkv_biases: Sequence[mx.array | None],
    others: Sequence[Packed],
    other_biases: Sequence[mx.array | None],
    rope: Rope,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    activation: str,
    residual_scale: float,
) -> Layer: ...
def decoder_layers(
    layers: Sequence[Layer],
    hidden: mx.array,
    stores: Sequence[mx.array],
    groups: Sequence[tuple[int, int]],
    offsets: Sequence[int],
    bases: Sequence[Sequence[int]],
) -> list[mx.array]: ...
