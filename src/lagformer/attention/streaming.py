"""Causal attention one or many steps at a time, with a state that does not grow.

Of all past keys linear attention needs only Σ_j φ(k_j) z_jᵀ; relative positions add the last R
values, whose lags still change, and the sum of the older ones, which stay at lag -R for good. Here
z_j = (v_j, 1): numerator and denominator side by side. Missing values before the first step are
zero with weight zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lagformer.attention.causal_form import causal_sums
from lagformer.attention.lag_form import lag_sums, lag_table
from lagformer.attention.toeplitz import lag_weighted_sums


class StreamState(NamedTuple):
    """What causal attention keeps of the past: (B, H, …) tensors of constant size."""

    content: Tensor  # (B, H, l, c+1): Σ φ(k_j) z_jᵀ over all keys, for Toeplitz those beyond lag R
    older: Tensor  # (B, H, c+1): Σ z_j over the keys beyond lag R
    values: Tensor  # (B, H, R, c+1): the last R z_j
    keys: Tensor  # (B, H, R, l): their φ(k_j), for Toeplitz only

    @classmethod
    def zeros(
        cls, batch: tuple[int, int], l: int, c: int, *, values: int, keys: int, like: Tensor
    ) -> StreamState:
        """The state before the first step; ``values`` and ``keys`` are how many of each to keep."""
        return cls(
            like.new_zeros(*batch, l, c + 1),
            like.new_zeros(*batch, c + 1),
            like.new_zeros(*batch, values, c + 1),
            like.new_zeros(*batch, keys, l),
        )


def content_step(x: Tensor, y: Tensor, z: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
    """φ(q) x, φ(k) y (B,H,n,l) and z (B,H,n,c+1) of n new steps → their content sums."""
    sums = causal_sums(x, y, z) + x @ state.content
    return sums, state._replace(content=state.content + y.transpose(-1, -2) @ z)


def lag_step(x: Tensor, z: Tensor, phi_r: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
    """The sums over lags, Σ_j φ(q_i)ᵀφ(r_m) z_j; phi_r (H, 2R+1, l)."""
    R, n = phi_r.shape[-2] // 2, x.shape[-2]
    window = torch.cat([state.values, z], dim=-2)  # query t is at R + t
    older = state.older.unsqueeze(-2) + window[..., :n, :].cumsum(dim=-2)  # at lag -R and beyond
    sums = (x @ phi_r[..., :1, :].transpose(-1, -2)) * older
    if R:
        near = lag_table(phi_r, R - 1, 0)
        sums = sums + lag_sums(x, near, window[..., 1:, :], 0, method="block")
    return sums, state._replace(older=older[..., -1, :], values=window[..., n:, :])


def toeplitz_step(
    x: Tensor, y: Tensor, z: Tensor, weights: Tensor, state: StreamState
) -> tuple[Tensor, StreamState]:
    """The weighted sums, Σ_j φ(q_i)ᵀφ(k_j) w_m z_j; weights (H, 2R+1)."""
    R, n = weights.shape[-1] // 2, x.shape[-2]
    keys, values = torch.cat([state.keys, y], dim=-2), torch.cat([state.values, z], dim=-2)
    older, state = content_step(x, keys[..., :n, :], values[..., :n, :], state)
    sums = weights[..., :1, None] * older
    if R:
        near = lag_table(weights.unsqueeze(-1), R - 1, 0).squeeze(-1)
        sums = sums + lag_weighted_sums(
            x, keys[..., 1:, :], near, values[..., 1:, :], 0, method="block"
        )
    return sums, state._replace(keys=keys[..., n:, :], values=values[..., n:, :])
