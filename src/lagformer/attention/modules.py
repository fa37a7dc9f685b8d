"""Multi-head attention modules without biases; the causal ones also stream."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lagformer.attention.feature_maps import accumulation_dtype
from lagformer.attention.feature_maps import feature_map as build_feature_map
from lagformer.attention.linear import linear_attention
from lagformer.attention.normalise import normalise, quarantine, release, split, with_weight
from lagformer.attention.relative import relative_linear_attention
from lagformer.attention.streaming import StreamState, content_step, lag_step, toeplitz_step
from lagformer.attention.toeplitz import toeplitz_linear_attention


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
        self, x: Float[Tensor, "*batch T D"], key_mask: Bool[Tensor, "*batch T"] | None = None
    ) -> Float[Tensor, "*batch T D"]:
        """Attend over the tokens x; ``key_mask`` True = a real token."""
        q, k, v = self._heads(x)
        mask = None if key_mask is None else key_mask.unsqueeze(-2)
        return self._merge(self._attend(q, k, v, mask))

    def initial_state(self, batch_size: int) -> StreamState:
        """The state before the first ``step``; raises ValueError unless the module is causal."""
        return self._state(batch_size, values=0, keys=0)

    def step(
        self, x: Float[Tensor, "B n D"], state: StreamState
    ) -> tuple[Float[Tensor, "B n D"], StreamState]:
        """Attend over n ≥ 1 new tokens and all before them: (outputs, new state).

        Feeding a sequence in any split equals one call of ``forward``. Raises ValueError unless
        the module is causal and x (B, n, D) has the state's batch size.
        """
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[0] != state.content.shape[0]:
            raise ValueError(
                f"a step takes x (B, n, D) with n ≥ 1 and the state's B = "
                f"{state.content.shape[0]}, got {tuple(x.shape)}"
            )
        if not self.causal:
            raise ValueError("only causal attention streams: build the module with causal=True")
        dtype = accumulation_dtype(x.dtype)
        q, k, v = (t.to(dtype) for t in self._heads(x))
        with torch.autocast(x.device.type, enabled=False):
            k, v, late = quarantine(k, v)
            sums, state = self._stream(
                self.feature_map.query(q), self.feature_map(k), with_weight(v, None), state
            )
            heads = release(normalise(*split(sums)), late)
        if late is not None:  # later steps see what was quarantined in this one
            seen = late[..., -1:, None]
            state = state._replace(content=state.content.masked_fill(seen, torch.nan))
        return self._merge(heads.to(x.dtype)), state

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, T, D) → three times (…, H, T, d)."""
        if x.dim() < 2 or x.shape[-1] != self.embed_dim:
            raise ValueError(f"tokens are (..., T, {self.embed_dim}), got {tuple(x.shape)}")
        shape = (*x.shape[:-1], self.num_heads, self.head_dim)
        q, k, v = (
            proj(x).view(shape).transpose(-2, -3)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return q, k, v

    def _merge(self, heads: Tensor) -> Tensor:
        merged: Tensor = self.out_proj(heads.transpose(-2, -3).flatten(-2))
        return merged

    def _state(self, batch_size: int, *, values: int, keys: int) -> StreamState:
        if not self.causal:
            raise ValueError("only causal attention streams: build the module with causal=True")
        if batch_size < 1:
            raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
        weight = self.q_proj.weight
        like = weight.new_empty(0, dtype=accumulation_dtype(weight.dtype)).detach()
        batch, l = (batch_size, self.num_heads), self.feature_map.num_features
        return StreamState.zeros(batch, l, self.head_dim, values=values, keys=keys, like=like)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return linear_attention(
            q, k, v, feature_map=self.feature_map, causal=self.causal, key_mask=key_mask
        )

    def _stream(
        self, x: Tensor, y: Tensor, z: Tensor, state: StreamState
    ) -> tuple[Tensor, StreamState]:
        return content_step(x, y, z, state)


class _WithLags(LinearAttention):
    """What attention with a table of lags shares."""

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


class RelativeLinearAttention(_WithLags):
    """Multi-head linear attention with one learned vector per head and lag.

    sim(i,j) = φ(q_i)ᵀφ(k_j) + φ(q_i)ᵀφ(r_m). 4·D·H·d + (2·max_lag + 1)·H·d parameters, no biases.
    Lags beyond ``max_lag`` share its vector; ``max_lag = T - 1`` is the full table. Arguments and
    errors as LinearAttention, and ValueError for max_lag < 0.
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
        super().__init__(
            embed_dim, num_heads, head_dim, max_lag=max_lag, feature_map=feature_map, causal=causal
        )
        # As spread as the keys' components under unit-variance input: nn.Linear gives 1/3.
        self.lags = nn.Parameter(
            torch.randn(num_heads, 2 * max_lag + 1, self.head_dim) / math.sqrt(3)
        )

    def initial_state(self, batch_size: int) -> StreamState:
        """The state before the first ``step``; raises ValueError unless the module is causal."""
        return self._state(batch_size, values=self.max_lag, keys=0)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return relative_linear_attention(
            q,
            k,
            v,
            self.lags.to(q.dtype),  # autocast projects to a half type
            feature_map=self.feature_map,
            causal=self.causal,
            key_mask=key_mask,
        )

    def _stream(
        self, x: Tensor, y: Tensor, z: Tensor, state: StreamState
    ) -> tuple[Tensor, StreamState]:
        content, state = content_step(x, y, z, state)
        lag, state = lag_step(x, z, self.feature_map(self.lags.to(x.dtype)), state)
        return content + lag, state


class ToeplitzLinearAttention(_WithLags):
    """Multi-head linear attention with one learned positive weight per head and lag.

    sim(i,j) = φ(q_i)ᵀφ(k_j)·w_m, w = exp(log_weights), 1 at first. 4·D·H·d + (2·max_lag + 1)·H
    parameters, no biases. Arguments and errors as RelativeLinearAttention.
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
        super().__init__(
            embed_dim, num_heads, head_dim, max_lag=max_lag, feature_map=feature_map, causal=causal
        )
        self.log_weights = nn.Parameter(torch.zeros(num_heads, 2 * max_lag + 1))

    def initial_state(self, batch_size: int) -> StreamState:
        """The state before the first ``step``; raises ValueError unless the module is causal."""
        return self._state(batch_size, values=self.max_lag, keys=self.max_lag)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return toeplitz_linear_attention(
            q,
            k,
            v,
            self.log_weights.exp().to(q.dtype),
            feature_map=self.feature_map,
            causal=self.causal,
            key_mask=key_mask,
        )

    def _stream(
        self, x: Tensor, y: Tensor, z: Tensor, state: StreamState
    ) -> tuple[Tensor, StreamState]:
        return toeplitz_step(x, y, z, self.log_weights.to(x.dtype).exp(), state)
