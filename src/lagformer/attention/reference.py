"""Dense O(T²) definitions of every attention form: the oracle the fast paths are compared with.

Written straight from the formulae, one weight matrix at a time, for reading and for checking, not
for speed. Imports nothing of the package. The similarity of query i and key j is

    softmax                 exp(q_iᵀk_j / √d)
    linear                  φ(q_i)ᵀφ(k_j)
    relative                φ(q_i)ᵀφ(k_j) + φ(q_i)ᵀφ(r_m),   m = clamp(j - i, -R, R)
    Toeplitz                φ(q_i)ᵀφ(k_j) · w_m

and the output is the average of the values weighted with it: o_i = Σ_j sim(i,j) v_j / Σ_j sim(i,j).
A key that is masked, or that lies in the future of a causal query, has no part in either sum; a row
without any weight gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Phi = str | Callable[[Tensor], Tensor]


def elu_plus_one(x: Tensor) -> Tensor:
    """1 + ELU(x): x + 1 above zero, exp(x) below (Katharopoulos et al. 2020, eq. 7)."""
    return torch.where(x > 0, x + 1, torch.exp(torch.where(x > 0, torch.zeros_like(x), x)))


def taylor2_full(x: Tensor) -> Tensor:
    """(1, x/d^¼, vec(xxᵀ)/√(2d)): 1 + d + d² features, φ(q)ᵀφ(k) = 1 + s + s²/2, s = qᵀk/√d."""
    d = x.shape[-1]
    one = torch.ones_like(x[..., :1])
    outer = x.unsqueeze(-1) * x.unsqueeze(-2)
    return torch.cat([one, x / d**0.25, outer.flatten(-2) / math.sqrt(2 * d)], dim=-1)


def taylor2(x: Tensor) -> Tensor:
    """The same with each pair a ≤ b once, off-diagonal ones times √2: 1 + d + d(d+1)/2 features."""
    d = x.shape[-1]
    features = [torch.ones_like(x[..., 0])] + [x[..., a] / d**0.25 for a in range(d)]
    for a in range(d):
        for b in range(a, d):
            weight = 1.0 if a == b else math.sqrt(2)
            features.append(weight * x[..., a] * x[..., b] / math.sqrt(2 * d))
    return torch.stack(features, dim=-1)


def _phi(feature_map: Phi) -> Callable[[Tensor], Tensor]:
    if callable(feature_map):
        return feature_map
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "elu+1": elu_plus_one,
        "relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
        "squared_relu": lambda x: torch.where(x > 0, x * x, torch.zeros_like(x)),
        "exp": torch.exp,
        "taylor2": taylor2,
        "taylor2_full": taylor2_full,
    }
    if feature_map not in known:
        raise ValueError(f"no closed form here for feature map {feature_map!r}: pass a function")
    return known[feature_map]


def _average(weights: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None) -> Tensor:
    """Average of v (..., S, c) with weights (..., T, S), leaving out masked and future keys."""
    T, S = weights.shape[-2:]
    allowed = torch.ones(T, S, dtype=torch.bool, device=weights.device)
    if causal:
        allowed = allowed.tril()
    if key_mask is not None:
        allowed = allowed & key_mask.unsqueeze(-2)
        v = torch.where(key_mask.unsqueeze(-1), v, torch.zeros_like(v))
    weights = torch.where(allowed, weights, torch.zeros_like(weights))
    total = weights.sum(dim=-1, keepdim=True)
    empty = total == 0
    average = (weights @ v) / torch.where(empty, torch.ones_like(total), total)
    return torch.where(empty, torch.zeros_like(average), average)


def lag_index(T: int, S: int, max_lag: int, device: torch.device | None = None) -> Tensor:
    """(T, S) row of the lag table for every pair: clamp(j - i, -R, R) + R."""
    i = torch.arange(T, device=device).unsqueeze(1)
    j = torch.arange(S, device=device).unsqueeze(0)
    return (j - i).clamp(-max_lag, max_lag) + max_lag


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """softmax(QKᵀ/√d) V (Vaswani et al. 2017, eq. 1); q (…,T,d), k (…,S,d), v (…,S,c)."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        allowed = allowed.tril()
    if key_mask is not None:
        allowed = allowed & key_mask.unsqueeze(-2)
    scores = scores.masked_fill(~allowed, -math.inf)
    # A row's largest score cancels in the average; without it exp would overflow.
    largest = scores.amax(dim=-1, keepdim=True) if scores.shape[-1] else scores.sum(-1, True)
    weights = torch.exp(scores - torch.where(largest.isfinite(), largest, 0.0))
    return _average(weights, v, causal, key_mask)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: Phi = "elu+1",
    causal: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """sim(i,j) = φ(q_i)ᵀφ(k_j) (Katharopoulos et al. 2020, eq. 4); shapes as softmax_attention."""
    phi = _phi(feature_map)
    if key_mask is not None:
        k = torch.where(key_mask.unsqueeze(-1), k, torch.zeros_like(k))
    return _average(phi(q) @ phi(k).transpose(-1, -2), v, causal, key_mask)


def relative_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lags: Tensor,
    *,
    feature_map: Phi = "elu+1",
    causal: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """sim(i,j) = φ(q_i)ᵀφ(k_j) + φ(q_i)ᵀφ(r_m), m = clamp(j-i, -R, R); lags (..., 2R+1, d)."""
    phi = _phi(feature_map)
    if key_mask is not None:
        k = torch.where(key_mask.unsqueeze(-1), k, torch.zeros_like(k))
    index = lag_index(q.shape[-2], k.shape[-2], (lags.shape[-2] - 1) // 2, q.device)
    content = phi(q) @ phi(k).transpose(-1, -2)
    # (..., T, S, l): φ(r_{j-i}) laid out for every pair
    position = (phi(q).unsqueeze(-2) * phi(lags)[..., index, :]).sum(dim=-1)
    return _average(content + position, v, causal, key_mask)


def toeplitz_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    *,
    feature_map: Phi = "elu+1",
    causal: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """sim(i,j) = φ(q_i)ᵀφ(k_j)·w_m, m = clamp(j-i, -R, R); weights (…,2R+1) (Luo et al. 2021)."""
    phi = _phi(feature_map)
    if key_mask is not None:
        k = torch.where(key_mask.unsqueeze(-1), k, torch.zeros_like(k))
    index = lag_index(q.shape[-2], k.shape[-2], (weights.shape[-1] - 1) // 2, q.device)
    content = phi(q) @ phi(k).transpose(-1, -2)
    return _average(content * weights[..., index], v, causal, key_mask)
