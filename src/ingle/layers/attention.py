"""Self-attention split at the seam of the packed forward: project, attend, output."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ingle.contracts.graph import GroupPass, Projected
from ingle.kernels import ops
from ingle.layers.linear import Linear
from ingle.layers.norm import RMSNorm
from ingle.layers.rope import Rope


@dataclass(slots=True, eq=False)
class Attention:
    """Grouped-query attention of one layer that owns its KV (KV number `kv_index`)."""

    q: Linear
    k: Linear
    v: Linear
    o: Linear
    rope: Rope
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    kv_index: int
    window: int | None = None
    softcap: float | None = None
    q_norm: RMSNorm | None = None  # over head_dim, before rotation
    k_norm: RMSNorm | None = None

    def project(self, x: mx.array) -> Projected:
        """[tokens, hidden] -> packed projection [tokens, heads, head_dim]."""

        def heads(y: mx.array, norm: RMSNorm | None) -> mx.array:
            y = y.reshape(y.shape[0], -1, self.head_dim)
            return y if norm is None else norm(y)

        return Projected(heads(self.q(x), self.q_norm), heads(self.k(x), self.k_norm), heads(self.v(x), None))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        """Group form [rows, heads, length, head_dim] -> [rows, length, heads * head_dim]."""
        assert projected.keys is not None and projected.values is not None
        queries = self.rope(projected.queries, run.offsets)
        keys = self.rope(projected.keys, run.offsets)
        view = run.group.state.write(self.kv_index, keys, projected.values)
        out = ops.attention(queries, view, scale=self.scale, window=self.window, softcap=self.softcap)
        return out.transpose(0, 2, 1, 3).reshape(run.group.rows, run.group.length, -1)

    def output(self, mixed: mx.array) -> mx.array:
        """[tokens, heads * head_dim] -> [tokens, hidden]."""
        return self.o(mixed)
