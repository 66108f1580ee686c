"""The pre-norm decoder layer that most families share, with optional norms behind both branches."""

from __future__ import annotations

import mlx.core as mx

from ingle.contracts.graph import GroupPass, Projected
from ingle.kernels import fused
from ingle.layers.attention import Attention
from ingle.layers.feed_forward import FeedForward, NormedMLP
from ingle.layers.norm import RMSNorm
from ingle.layers.per_layer import PerLayerInput


class DecoderLayer:
    """x + s * mixed_norm(attention(input_norm(x))), then x + s * output_norm(feed_forward(x)).

    See `contracts.graph.GraphLayer`. s is `residual_scale`; norms that are None are left out. With
    `per_layer` its branch follows; in the end all is multiplied by `output_scale`.
    """

    def __init__(
        self,
        *,
        input_norm: RMSNorm,
        attention: Attention,
        feed_forward: FeedForward,
        mixed_norm: RMSNorm | None = None,
        output_norm: RMSNorm | None = None,
        residual_scale: float = 1.0,
        per_layer: PerLayerInput | None = None,
        output_scale: float = 1.0,
    ) -> None:
        self._input_norm, self._attention, self._mixed_norm = input_norm, attention, mixed_norm
        self._feed_forward, self._output_norm = feed_forward, output_norm
        self._scale, self._per_layer, self._output_scale = residual_scale, per_layer, output_scale
        self.fused = self._fuse()

    @property
    def kv_index(self) -> int:
        return self._attention.kv_index

    def before(self, hidden: mx.array) -> Projected:
        return self._attention.project(self._input_norm(hidden))

    def attend(self, projected: Projected, run: GroupPass) -> mx.array:
        return self._attention.attend(projected, run)

    def after(self, hidden: mx.array, mixed: mx.array, side: mx.array | None) -> mx.array:
        hidden = self._add(hidden, self._attention.output(mixed), self._mixed_norm)
        hidden = self._add(hidden, self._feed_forward(hidden), self._output_norm)
        if self._per_layer is not None:
            assert side is not None
            hidden = hidden + self._per_layer(hidden, side)
        return hidden if self._output_scale == 1.0 else hidden * self._output_scale

    def _add(self, hidden: mx.array, branch: mx.array, norm: RMSNorm | None) -> mx.array:
        branch = branch if norm is None else norm(branch)
        return hidden + (branch if self._scale == 1.0 else branch * self._scale)

    def _fuse(self) -> object | None:
        a, inner, side = self._attention, self._feed_forward, self._per_layer
        if a.rope.fused is None or not isinstance(inner, NormedMLP):
            return None
        return fused.fuse(
            fused.LayerParts(
                input_norm=self._input_norm.weight,
                mlp_norm=inner.norm.weight,
                q_norm=_factor(a.q_norm),
                k_norm=_factor(a.k_norm),
                v_norm=_factor(a.v_norm),
                mixed_norm=_factor(self._mixed_norm),
                output_norm=_factor(self._output_norm),
                eps=self._input_norm.eps,
                qkv=[linear.packed for linear in (a.q, a.k, a.v) if linear is not None],
                o=a.o.packed,
                gate=inner.mlp.gate.packed,
                up=inner.mlp.up.packed,
                down=inner.mlp.down.packed,
                side=None if side is None else (side.gate.packed, side.project.packed),
                side_norm=None if side is None else side.norm.weight,
                rope=a.rope.fused,
                heads=a.heads,
                kv_heads=a.kv_heads,
                head_dim=a.head_dim,
                scale=a.scale,
                window=a.window,
                softcap=a.softcap,
                activation=inner.mlp.activation,
                residual_scale=self._scale,
                output_scale=self._output_scale,
            )
        )


def _factor(norm: RMSNorm | None) -> mx.array | None:
    return None if norm is None else norm.weight
