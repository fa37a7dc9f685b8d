"""Linear attention with relative positions: the content kernel plus a second one over lags."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.attention.checks import check_lags, check_qkv
from lagformer.attention.feature_maps import MapSpec, accumulation_dtype, resolve
from lagformer.attention.linear import content_sums, normalise

METHODS = ("auto", "dense", "block", "fft", "band")


def relative_linear_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S c"],
    lags: Float[Tensor, "*batch M d"],
    *,
    feature_map: MapSpec = "elu+1",
    causal: bool = False,
    key_mask: Bool[Tensor, "*batch S"] | None = None,
    method: str = "auto",
) -> Float[Tensor, "*batch T c"]:
    """sim(i,j) = φ(q_i)ᵀφ(k_j) + φ(q_i)ᵀφ(r_m), m = clamp(j - i, -R, R)."""
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    check_lags(lags, q, batch, ndim=2, name="lags")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    phi_query, phi_key = resolve(feature_map, q.shape[-1])
    dtype = accumulation_dtype(q.dtype)
    phi_q, phi_k, phi_r = (
        f(x.to(dtype)) for f, x in ((phi_query, q), (phi_key, k), (phi_key, lags))
    )
    value = v.to(dtype)
    one = value.new_ones(value.shape[:-1])
    if key_mask is not None:
        phi_k = phi_k.masked_fill(~key_mask.unsqueeze(-1), 0)
        value = value.masked_fill(~key_mask.unsqueeze(-1), 0)
        one = one.masked_fill(~key_mask, 0)
    numerator, denominator = content_sums(phi_q, phi_k, value, causal=causal)
    T, S, R = q.shape[-2], k.shape[-2], (lags.shape[-2] - 1) // 2
    offset = torch.arange(S, device=q.device) - torch.arange(T, device=q.device).unsqueeze(1)
    scores = (phi_q @ phi_r.transpose(-1, -2)).gather(
        -1, (offset.clamp(-R, R) + R).expand(*batch, T, S)
    )
    if causal:
        scores = scores.tril()
    numerator = numerator + scores @ value
    denominator = denominator + (scores @ one.unsqueeze(-1)).squeeze(-1)
    return normalise(numerator, denominator).to(q.dtype)
