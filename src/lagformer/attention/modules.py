"""Multi-head attention modules without biases."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lagformer.attention.feature_maps import feature_map as build_feature_map
from lagformer.attention.linear import linear_attention
from lagformer.attention.relative import relative_linear_attention


class LinearAttention(nn.Module):
    """Multi-head linear attention without positions: 4·D·H·d parameters, no biases.

    Args:
        embed_dim: D, width of the tokens.
        num_heads: H.
        head_dim: d, default D / H.
        feature_map: name of the feature map.
        causal: token i sees tokens j ≤ i only.

    Raises ValueError for sizes below 1, or D not divisible by H when head_dim is not given.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        feature_map: str = "elu+1",
        causal: bool = False,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or (head_dim is not None and head_dim < 1):
            raise ValueError(
                f"sizes must be ≥ 1: embed_dim {embed_dim}, num_heads {num_heads}, "
                f"head_dim {head_dim}"
            )
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}: "
                    "give head_dim"
                )
            head_dim = embed_dim // num_heads
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.causal = causal
        self.feature_map = build_feature_map(feature_map, head_dim)
        inner = num_heads * head_dim
        self.q_proj = nn.Linear(embed_dim, inner, bias=False)
        self.k_proj = nn.Linear(embed_dim, inner, bias=False)
        self.v_proj = nn.Linear(embed_dim, inner, bias=False)
        self.out_proj = nn.Linear(inner, embed_dim, bias=False)

    def forward(
        self, x: Float[Tensor, "B T D"], key_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend over the tokens x; ``key_mask`` True = a real token."""
        q, k, v = self._heads(x)
        mask = None if key_mask is None else key_mask.unsqueeze(-2)
        y: Tensor = self.out_proj(self._attend(q, k, v, mask).transpose(-2, -3).flatten(-2))
        return y

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) → three times (B, H, T, d)."""
        if x.dim() < 2 or x.shape[-1] != self.embed_dim:
            raise ValueError(f"tokens are (..., T, {self.embed_dim}), got {tuple(x.shape)}")
        shape = (*x.shape[:-1], self.num_heads, self.head_dim)
        q, k, v = (
            proj(x).view(shape).transpose(-2, -3)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return linear_attention(
            q, k, v, feature_map=self.feature_map, causal=self.causal, key_mask=key_mask
        )


class RelativeLinearAttention(LinearAttention):
    """Multi-head linear attention with one learned vector per head and lag (mission 1.3.3).

    4·D·H·d + (2·max_lag + 1)·H·d parameters, no biases. Lags beyond ``max_lag`` share its vector;
    ``max_lag = T - 1`` is the full table.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        max_lag: int,
        feature_map: str = "elu+1",
        causal: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, feature_map=feature_map, causal=causal)
        if max_lag < 0:
            raise ValueError(f"max_lag must be ≥ 0, got {max_lag}")
        self.max_lag = max_lag
        # As spread as the keys' components under unit-variance input: nn.Linear gives 1/3.
        self.lags = nn.Parameter(
            torch.randn(num_heads, 2 * max_lag + 1, self.head_dim) / math.sqrt(3)
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return relative_linear_attention(
            q,
            k,
            v,
            self.lags,
            feature_map=self.feature_map,
            causal=self.causal,
            key_mask=key_mask,
        )
