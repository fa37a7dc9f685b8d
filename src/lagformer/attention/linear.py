"""Softmax attention, and linear attention in time O(T l d)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.attention.checks import check_qkv
from lagformer.attention.feature_maps import MapSpec, accumulation_dtype, resolve


def softmax_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S c"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "*batch S"] | None = None,
) -> Float[Tensor, "*batch T c"]:
    """softmax(QKᵀ/√d) V, in time O(T² d) (Vaswani et al. 2017, eq. 1): the yardstick.

    ``key_mask`` True = a real position; a row without any key gives zeros. Raises ValueError for
    shapes that do not fit.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    if key_mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    v = v.masked_fill(~key_mask.unsqueeze(-1), 0)
    allowed = key_mask.unsqueeze(-2)
    if causal:
        allowed = (
            allowed & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        )
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)


def normalise(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator (…,T,c) over denominator (…,T); where the latter is exactly 0, zeros."""
    denominator = denominator.unsqueeze(-1)
    # Without weight the numerator is 0 too: dividing it by 1 gives the zeros, gradient included.
    return numerator / denominator.masked_fill(denominator == 0, 1)


def linear_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S c"],
    *,
    feature_map: MapSpec = "elu+1",
    causal: bool = False,
    key_mask: Bool[Tensor, "*batch S"] | None = None,
) -> Float[Tensor, "*batch T c"]:
    """o_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), in time O(T l c).

    (Katharopoulos et al. 2020, eqs. 4-12.)

    Args:
        q, k, v: any number of leading dimensions, none included, which broadcast; T ≠ S allowed
            when not causal. Give grouped keys and values a dimension of size 1: it is not copied.
        feature_map: a name, a FeatureMap or function, or a pair (for queries, for keys).
        causal: query i sees keys j ≤ i only.
        key_mask: True = a real position. Masked keys leave numerator and denominator.

    A row without any weight gives zeros. Half types are summed in float32 and cast at the end.
    Raises ValueError for shapes or types that do not fit.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    phi_query, phi_key = resolve(feature_map, q.shape[-1])
    dtype = accumulation_dtype(q.dtype)
    phi_q, phi_k, value = phi_query(q.to(dtype)), phi_key(k.to(dtype)), v.to(dtype)
    if key_mask is not None:
        phi_k = phi_k.masked_fill(~key_mask.unsqueeze(-1), 0)
        value = value.masked_fill(~key_mask.unsqueeze(-1), 0)
    return normalise(*content_sums(phi_q, phi_k, value, causal=causal)).to(q.dtype)


def content_sums(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """Numerator φ(Q)(φ(K)ᵀV) (…,T,c) and denominator φ(Q)(φ(K)ᵀ1) (…,T) of the content kernel."""
    if not causal:
        numerator = phi_q @ (phi_k.transpose(-1, -2) @ v)
        return numerator, (phi_q @ phi_k.sum(dim=-2).unsqueeze(-1)).squeeze(-1)
    numerators, denominators = [], []
    state = v.new_zeros(*v.shape[:-2], phi_k.shape[-1], v.shape[-1])
    total = torch.zeros_like(phi_k[..., :1, :]).sum(dim=-2)
    for start in range(0, max(phi_q.shape[-2], 1), chunk):
        here = slice(start, start + chunk)
        a, b, w = phi_q[..., here, :], phi_k[..., here, :], v[..., here, :]
        scores = (a @ b.transpose(-1, -2)).tril()
        numerators.append(scores @ w + a @ state)
        denominators.append(scores.sum(dim=-1) + (a @ total.unsqueeze(-1)).squeeze(-1))
        state = state + b.transpose(-1, -2) @ w
        total = total + b.sum(dim=-2)
    return torch.cat(numerators, dim=-2), torch.cat(denominators, dim=-1)
