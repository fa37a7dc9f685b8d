"""Softmax attention, and linear attention in time O(T l c)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.attention.causal_form import causal_sums
from lagformer.attention.checks import check_qkv
from lagformer.attention.feature_maps import (
    FeatureMap,
    MapSpec,
    accumulation_dtype,
    map_queries,
    resolve,
)
from lagformer.attention.fused import Elementwise, can_fuse
from lagformer.attention.fused_causal import fused_causal_attention
from lagformer.attention.fused_linear import fused_linear_attention
from lagformer.attention.lag_form import Layout
from lagformer.attention.normalise import (
    normalise,
    quarantine,
    release,
    split,
    with_weight,
    without_masked,
)


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
    k, v = (x.masked_fill(~key_mask.unsqueeze(-1), 0) for x in (k, v))
    allowed = key_mask.unsqueeze(-2)
    if causal:
        square = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        allowed = allowed & square.tril()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)


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
            when not causal. Grouped keys and values (a dimension of size 1, or an expanded one
            when no gradient is asked for) are not copied.
        feature_map: a name, a FeatureMap or function, or a pair (for queries, for keys).
        causal: query i sees keys j ≤ i only.
        key_mask: True = a real position. Masked keys leave numerator and denominator.

    A row without any weight gives zeros. Half types are summed in float32 and cast at the end.
    Raises ValueError for shapes or types that do not fit.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    phi_q, phi_k = resolve(feature_map, q.shape[-1])
    dtype = accumulation_dtype(q.dtype)
    late = None
    k, v = without_masked(ungrouped(k), ungrouped(v), key_mask)
    if causal:
        k, v, late = quarantine(k, v)
    with torch.autocast(q.device.type, enabled=False):
        query, key, value = q.to(dtype), k.to(dtype), v.to(dtype)
        same_batch = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        if key_mask is None and same_batch and can_fuse():
            # The largest leading dimension is worked on at once, the others in turn.
            batch = q.shape[:-2]
            largest = max(range(len(batch)), key=batch.__getitem__, default=-1)
            layout = Layout.of(batch, [1 if i == largest else 2 for i in range(len(batch))])
            query, key, elementwise = prepare(phi_q, phi_k, query, key)
            aligned = (layout.align(query), layout.align(key), layout.align(value))
            fused = fused_causal_attention if causal else fused_linear_attention
            return release(layout.restore(fused(*aligned, elementwise)), late).to(q.dtype)
        query, key = map_queries(phi_q, query), phi_k(key)
        if key_mask is not None:
            key = key.masked_fill(~key_mask.unsqueeze(-1), 0)
        weighted = with_weight(value, key_mask)
        out = normalise(*split(content_sums(query, key, weighted, causal=causal)))
    return release(out, late).to(q.dtype)


def ungrouped(x: Tensor) -> Tensor:
    """An expanded (…,S,c) with its repeated leading dimensions at size 1, where that is exact.

    With gradients it is not: each of the repeated slices has a gradient of its own.
    """
    if torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
        return x
    for dim in range(x.dim() - 2):
        if x.stride(dim) == 0 and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x


def prepare(
    phi_q: Callable[[Tensor], Tensor], phi_k: Callable[[Tensor], Tensor], q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor, Elementwise | None]:
    """What the fused passes take: vectors as they are where they can map them themselves."""
    if phi_q is phi_k and isinstance(phi_k, FeatureMap) and phi_k.elementwise:
        return q, k, Elementwise(phi_k.phi, phi_k.write, phi_k.slope)
    return map_queries(phi_q, q), phi_k(k), None


def content_sums(phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Σ_j φ(q_i)ᵀφ(k_j) v_j, over j ≤ i when causal: (…, T, c)."""
    if causal:
        return causal_sums(phi_q, phi_k, v)
    return phi_q @ (phi_k.transpose(-1, -2) @ v)
