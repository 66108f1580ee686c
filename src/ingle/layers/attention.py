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
    """Grouped-query attention of one layer.

    It owns KV number `kv_index`, or reads it where it has no `k`. Without `v` values are the keys before
    their norm and rotation.
    """

    q: Linear
    k: Linear | None
    v: Linear | None
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
    v_norm: RMSNorm | None = None

    def project(self, x: mx.array) -> Projected:
        """[tokens, hidden] -> packed projection [tokens, heads, head_dim]."""

        def heads(y: mx.array) -> mx.array:
            return y.reshape(y.shape[0], -1, self.head_dim)

        queries = _normed(heads(self.q(x)), self.q_norm)
        if self.k is None:
            return Projected(queries, None, None)
        keys = heads(self.k(x))
        values = keys if self.v is None else heads(self.v(x))
        return Projected(queries, _normed(keys, self.k_norm), _normed(values, self.v_norm))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        """Group form [rows, heads, length, head_dim] -> [rows, length, heads * head_dim]."""
        queries = self.rope(projected.queries, run.offsets)
        if projected.keys is None or projected.values is None:
            view = run.donor(self.kv_index)
        else:
            keys = self.rope(projected.keys, run.offsets)
            view = run.group.state.write(self.kv_index, keys, projected.values)
            run.shared_kv[self.kv_index] = view
        ends = None if self.window is None else run.group.ends
        out = ops.attention(
            queries, view, scale=self.scale, window=self.window, softcap=self.softcap, ends=ends
        )
        return out.transpose(0, 2, 1, 3).reshape(run.group.rows, run.group.length, -1)

    def output(self, mixed: mx.array) -> mx.array:
        """[tokens, heads * head_dim] -> [tokens, hidden]."""
        return self.o(mixed)


def _normed(x: mx.array, norm: RMSNorm | None) -> mx.array:
    return x if norm is None else norm(x)
