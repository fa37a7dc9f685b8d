"""The average without positions and its gradient, tile by tile in the cache.

    o_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j)

without masks and causality: the numbers of linear.py's plain formula in fewer trips to memory.
What is made for one tile, some rows or a stretch of one, is gone before the next.

Shapes: q (G, B, T, d), k (G, B, S, d), v (G, B, S, c); heads and batch apart, as merging may copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lagformer.attention.fused import CACHED, KEPT, Elementwise, second_derivatives
from lagformer.attention.normalise import normalise
from lagformer.attention.precision import without_autocast


def fused_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, elementwise: Elementwise | None
) -> Tensor:
    """Average of v for every query, (G, B, T, c); q and k are features if nothing maps them."""
    result: Tensor = _FusedLinear.apply(q, k, v, elementwise)  # type: ignore[no-untyped-call]
    return result


def _plain(elementwise: Elementwise | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in differentiable operations: where second derivatives come from."""
    if elementwise:
        q, k = elementwise.phi(q), elementwise.phi(k)
    numerator = q @ (k.transpose(-1, -2) @ v)
    return normalise(numerator, (q * k.sum(dim=-2, keepdim=True)).sum(dim=-1))


Rows = tuple[int, slice]


def _tiles(x: Tensor) -> Iterator[tuple[Rows, tuple[int, slice, slice]]]:
    """Tiles of x (G, B, T, l) of CACHED numbers: their rows, several or one, and their place."""
    n_groups, n_rows, T, l = x.shape
    length = max(1, min(T, CACHED // max(1, l)))
    rows = max(1, CACHED // max(1, T * l))
    for group, i, t in itertools.product(
        range(n_groups), range(0, n_rows, rows), range(0, T, length)
    ):
        yield (group, slice(i, i + rows)), (group, slice(i, i + rows), slice(t, t + length))


def _features(elementwise: Elementwise | None, x: Tensor, keep: Tensor | None = None) -> Tensor:
    if elementwise is None:
        return x
    return elementwise.write(x, x.new_empty(x.shape) if keep is None else keep)


def _slope(elementwise: Elementwise | None, phi: Tensor) -> Tensor | float:
    return elementwise.slope(phi) if elementwise else 1.0


class _FusedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, elementwise: Elementwise | None
    ) -> Tensor:
        (*rows, T, l), c = q.shape, v.shape[-1]
        out, den = v.new_empty(*rows, T, c), v.new_empty(*rows, T, 1)
        kv, k_sum = v.new_zeros(*rows, l, c), v.new_zeros(*rows, 1, l)
        keep = elementwise is not None and q.numel() + k.numel() <= KEPT
        keep = keep and any(ctx.needs_input_grad)
        kept = [x.new_empty(x.shape) for x in (q, k)] if keep else []
        for its, here in _tiles(k):
            y = _features(elementwise, k[here], kept[1][here] if keep else None)
            kv[its].baddbmm_(y.transpose(1, 2), v[here])
            k_sum[its] += y.sum(dim=1, keepdim=True)
        for its, here in _tiles(q):
            x = _features(elementwise, q[here], kept[0][here] if keep else None)
            d = torch.sum(x * k_sum[its], dim=-1, keepdim=True, out=den[here])
            d.masked_fill_(d == 0, 1)  # without weight the numerator is 0 too
            torch.div(torch.bmm(x, kv[its]), d, out=out[here])
        ctx.elementwise = elementwise
        ctx.save_for_backward(q, k, v, out, den, kv, k_sum, *kept)
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, den, kv, k_sum, *kept = ctx.saved_tensors
        elementwise = ctx.elementwise
        still = None if kept else elementwise
        phi_q, phi_k = kept or (q, k)
        if torch.is_grad_enabled():
            return (*second_derivatives(_plain, elementwise, [q, k, v], grad), None)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_kv, d_k_sum = torch.zeros_like(kv), torch.zeros_like(k_sum)
        for its, here in _tiles(q):
            x = _features(still, phi_q[here])
            g = grad[here] / den[here]
            g_den = (g * out[here]).sum(dim=-1, keepdim=True).neg_()
            d_kv[its].baddbmm_(x.transpose(1, 2), g)
            d_k_sum[its] += torch.bmm(g_den.transpose(1, 2), x)
            dx = torch.bmm(g, kv[its].transpose(1, 2)).addcmul_(g_den, k_sum[its])
            torch.mul(dx, _slope(elementwise, x), out=dq[here])
        for its, here in _tiles(k):
            y = _features(still, phi_k[here])
            dy = torch.baddbmm(d_k_sum[its], v[here], d_kv[its].transpose(1, 2))
            torch.mul(dy, _slope(elementwise, y), out=dk[here])
            dv[here] = torch.bmm(y, d_kv[its])
        return dq, dk, dv, None
