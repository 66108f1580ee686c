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

class KVBlock:
    @property
    def nbytes(self) -> int: ...
    def __bytes__(self) -> bytes: ...

class KVTable:
    def __init__(self, layers: int, heads: int, dim: int, halves: bool) -> None: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    def reserve(self, needed: int, start: int, end: int) -> None: ...
    def cut(self, end: int) -> None: ...
    def share(self, number: int) -> KVBlock: ...
    def replace(self, number: int, block: KVBlock) -> None: ...
    def copy(self) -> KVTable: ...
    def adopt(self, first: int, blocks: Sequence[KVBlock]) -> KVTable: ...
    def block_from(self, data: bytes) -> KVBlock: ...

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
    keys: mx.array,
    values: mx.array,
    tables: Sequence[KVTable],
    layer: int,
    starts: Sequence[int],
    after: Sequence[mx.array],
) -> mx.array: ...
def attention(
    queries: mx.array,
    tables: Sequence[KVTable],
    layer: int,
    offsets: Sequence[int],
    after: Sequence[mx.array],
    ends: mx.array | None,
    scale: float,
    window: int,
    softcap: float,
) -> mx.array: ...
def contents(table: KVTable, layer: int, first: int, end: int) -> tuple[mx.array, mx.array]: ...
def weight_bytes() -> int: ...
def kv_bytes() -> int: ...
def kv_peak_bytes() -> int: ...
def reset_kv_peak() -> None: ...
def arena_bytes() -> int: ...
def sample(logits: mx.array, draws: Sequence[Draw]) -> mx.array: ...
def make_rope(inv_freq: mx.array, scale: float) -> Rope: ...
def make_layer(
    *,
    input_norm: mx.array,
    mlp_norm: mx.array,
    q_norm: mx.array | None,
    k_norm: mx.array | None,
    v_norm: mx.array | None,
    mixed_norm: mx.array | None,
    output_norm: mx.array | None,
    side_norm: mx.array | None,
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
    output_scale: float,
) -> Layer: ...
def decoder_layers(
    layers: Sequence[Layer],
    hidden: mx.array,
    tables: Sequence[Sequence[KVTable]],
    places: Sequence[tuple[int, int]],
    groups: Sequence[tuple[int, int]],
    offsets: Sequence[int],
    ends: Sequence[Sequence[int]],
    sides: mx.array | None,
    after: Sequence[mx.array],
) -> mx.array: ...

class Drafter: ...

def make_drafter(
    *,
    table: Packed,
    scale: float,
    text_ids: mx.array | None,
    pre: Packed,
    layers: Sequence[Layer],
    norm: mx.array,
    eps: float,
    head: Packed,
    softcap: float,
    post: Packed,
) -> Drafter: ...
def draft(
    drafter: Drafter,
    tokens: mx.array,
    hidden: mx.array,
    tables: Sequence[Sequence[KVTable]],
    places: Sequence[tuple[int, int]],
    offsets: Sequence[int],
    depths: Sequence[int],
    draws: Sequence[Draw],
    after: Sequence[mx.array],
) -> mx.array: ...
