"""The pre-norm decoder layer that most families share, with optional norms behind both branches."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.graph import GroupPass, Projected
from ingle.kernels import fused
from ingle.layers.attention import Attention
from ingle.layers.mlp import GatedMLP
from ingle.layers.norm import RMSNorm


class DecoderLayer:
    """x + s * mixed_norm(attention(input_norm(x))), then x + s * output_norm(mlp(mlp_norm(x))).

    See `contracts.graph.GraphLayer`. s is `residual_scale`; norms that are None are left out.
    """

    def __init__(
        self,
        *,
        input_norm: RMSNorm,
        attention: Attention,
        mlp_norm: RMSNorm,
        mlp: GatedMLP,
        mixed_norm: RMSNorm | None = None,
        output_norm: RMSNorm | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        self._input_norm, self._attention, self._mixed_norm = input_norm, attention, mixed_norm
        self._mlp_norm, self._mlp, self._output_norm = mlp_norm, mlp, output_norm
        self._scale = residual_scale
        self.fused = self._fuse()

    def before(self, hidden: mx.array) -> Projected:
        return self._attention.project(self._input_norm(hidden))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        return self._attention.attend(projected, run)

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        hidden = self._add(hidden, self._attention.output(mixed), self._mixed_norm)
        return self._add(hidden, self._mlp(self._mlp_norm(hidden)), self._output_norm)

    def _add(self, hidden: mx.array, branch: mx.array, norm: RMSNorm | None) -> mx.array:
        branch = branch if norm is None else norm(branch)
        return hidden + (branch if self._scale == 1.0 else branch * self._scale)

    def _fuse(self) -> object | None:
        a, mlp = self._attention, self._mlp
        if a.rope.fused is None:
            return None
        return fused.fuse(
            fused.LayerParts(
                input_norm=self._input_norm.weight,
                mlp_norm=self._mlp_norm.weight,
                q_norm=_factor(a.q_norm),
                k_norm=_factor(a.k_norm),
                mixed_norm=_factor(self._mixed_norm),
                output_norm=_factor(self._output_norm),
                eps=self._input_norm.eps,
                q=a.q.packed,
                k=a.k.packed,
                v=a.v.packed,
                o=a.o.packed,
                gate=mlp.gate.packed,
                up=mlp.up.packed,
                down=mlp.down.packed,
                rope=a.rope.fused,
                heads=a.heads,
                kv_heads=a.kv_heads,
                head_dim=a.head_dim,
                scale=a.scale,
                window=a.window,
                softcap=a.softcap,
                activation=mlp.activation,
                residual_scale=self._scale,
            )
        )


def _factor(norm: RMSNorm | None) -> mx.array | None:
    return None if norm is None else norm.weight
