"""The whole average and its gradient in one step, block by block in the cache.

    o_i = φ(q_i)ᵀ(φ(K)ᵀV + S_i) / φ(q_i)ᵀ(φ(K)ᵀ1 + s_i)

without masks and causality; S and s are zero for attention without positions. The same numbers as
the plain formulae of linear.py and relative.py in fewer trips to memory: features are made anew in
the backward pass, and a block of queries is finished before the next one is begun.

Shapes as in lag_form.py: q (G, B, T, d), k (G, B, S, d), v (G, B, S, c), table φ(r) (G, N, l).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagformer.attention.lag_form import BLOCK, askew, lag_sums
from lagformer.attention.normalise import normalise

# Numbers (scores, or features where there are no lags) a step works on, to stay in the cache.
CACHED = 2**18


class Elementwise(NamedTuple):
    """A feature map that acts by element, and its slope as a function of φ."""

    phi: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


class Lags(NamedTuple):
    """φ(r) for the lags 1-T … S-1 (G, T+S-1, l), and its window sums s (G, T, l)."""

    table: Tensor
    window: Tensor


def can_fuse() -> bool:
    """False where a compiler or a function transform does the fusing, or needs plain formulae."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, lags: Lags | None, elementwise: Elementwise | None
) -> Tensor:
    """Average of v for every query, (G, B, T, c); q and k are features if not ``elementwise``."""
    table, window = lags or (q.new_empty(0), q.new_empty(0))
    result: Tensor
    result, _ = _Fused.apply(q, k, v, table, window, elementwise)  # type: ignore[no-untyped-call]
    return result


def _plain(
    elementwise: Elementwise | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    window: Tensor,
) -> Tensor:
    """The same in differentiable operations: where second derivatives come from."""
    if elementwise:
        q, k = elementwise.phi(q), elementwise.phi(k)
    numerator = q @ (k.transpose(-1, -2) @ v)
    weight = k.sum(dim=-2, keepdim=True)
    if table.numel():
        table, window = table.unsqueeze(1), window.unsqueeze(1)
        numerator = numerator + lag_sums(q, table, v, q.shape[-2] - 1, method="block")
        weight = weight + window
    return normalise(numerator, (q * weight).sum(dim=-1))


class _Tile(NamedTuple):
    """One group, some of its rows; their queries and keys in pieces."""

    group: int
    rows: slice
    queries: list[slice]
    keys: list[slice]


def _tiles(q: Tensor, S: int, with_lags: bool) -> Iterator[_Tile]:
    n_groups, n_rows, T, d = q.shape
    if with_lags:  # equal blocks of at most BLOCK queries, every key
        n = -(-T // max(1, -(-T // BLOCK)))
        rows, n_keys = CACHED // max(1, n * (S + n)), max(S, 1)
    else:
        rows = CACHED // max(1, d * max(T, S))
        n = n_keys = max(1, CACHED // (d * max(rows, 1)))
    rows = max(1, min(n_rows, rows))
    queries = [slice(t, min(t + n, T)) for t in range(0, T, max(n, 1))]
    keys = [slice(s, min(s + n_keys, S)) for s in range(0, S, n_keys)]
    for i in range(n_groups):
        for j in range(0, n_rows, rows):
            yield _Tile(i, slice(j, min(j + rows, n_rows)), queries, keys)


def _content(
    tile: _Tile, k: Tensor, values: Tensor, phi: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """φ(K)ᵀV (B, l, c) and φ(K)ᵀ1 (B, 1, l)."""
    kv = weight = values.new_zeros(())
    for piece in tile.keys:
        features = phi(k[tile.group, tile.rows, piece])
        kv = kv + torch.bmm(features.transpose(1, 2), values[:, piece])
        weight = weight + features.sum(dim=1, keepdim=True)
    return kv, weight


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        window: Tensor,
        elementwise: Elementwise | None,
    ) -> tuple[Tensor, Tensor]:
        T, S = q.shape[2], k.shape[2]
        phi = elementwise.phi if elementwise else torch.Tensor.contiguous
        with_lags = table.numel() > 0
        out = q.new_zeros(*q.shape[:3], v.shape[-1])
        den = q.new_ones(*q.shape[:3], 1)
        for tile in _tiles(q, S, with_lags) if S else ():
            values = v[tile.group, tile.rows].contiguous()
            kv, weight = _content(tile, k, values, phi)
            for piece in tile.queries:
                here = (tile.group, tile.rows, piece)
                features = phi(q[here])
                n_q, l = features.shape[1:]
                num = torch.bmm(features, kv)
                total = weight
                if with_lags:
                    lags = table[tile.group, T - piece.stop : T - piece.start + S - 1]
                    scores = torch.mm(features.view(-1, l), lags.t())
                    num.baddbmm_(askew(scores, n_q, S), values)
                    total = weight + window[tile.group, piece]
                d = (features * total).sum(dim=-1, keepdim=True)
                d.masked_fill_(d == 0, 1)  # without weight num is 0 too
                torch.div(num, d, out=out[here])
                den[here] = d
        return out, den

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.elementwise = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, den = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = iter(
                torch.autograd.grad(
                    _plain(ctx.elementwise, *inputs),
                    [x for x in inputs if x.requires_grad],
                    grad,
                    create_graph=True,
                    allow_unused=True,
                )
            )
            return (*(next(again) if x.requires_grad else None for x in inputs), None)
        q, k, v, table, window = inputs
        T, S = q.shape[2], k.shape[2]
        phi = ctx.elementwise.phi if ctx.elementwise else torch.Tensor.contiguous
        with_lags = table.numel() > 0
        dq, dk, dv, dtable, dwindow = (torch.zeros_like(x) for x in inputs)
        skewed = table
        for tile in _tiles(q, S, with_lags) if S else ():
            values = v[tile.group, tile.rows].contiguous()
            kv, weight = _content(tile, k, values, phi)
            dkv, dweight = torch.zeros_like(kv), torch.zeros_like(weight)
            d_values = torch.zeros_like(values)
            for piece in tile.queries:
                here = (tile.group, tile.rows, piece)
                features = phi(q[here])
                n_q, l = features.shape[1:]
                g_num = grad[here] / den[here]
                g_den = (g_num * out[here]).sum(dim=-1, keepdim=True).neg_()
                d_features = torch.bmm(g_num, kv.transpose(1, 2))
                dkv.baddbmm_(features.transpose(1, 2), g_num)
                weighed = features * g_den
                dweight += weighed.sum(dim=1, keepdim=True)
                total = weight
                if with_lags:
                    at = slice(T - piece.stop, T - piece.start + S - 1)
                    lags, flat = table[tile.group, at], features.view(-1, l)
                    scores = torch.mm(flat, lags.t())
                    d_values.baddbmm_(askew(scores, n_q, S).transpose(1, 2), g_num)
                    if skewed.shape != scores.shape:
                        skewed = torch.zeros_like(scores)  # stays zero off the pairs
                    askew(skewed, n_q, S).copy_(torch.bmm(g_num, values.transpose(1, 2)))
                    d_features.view(-1, l).addmm_(skewed, lags)
                    dtable[tile.group, at].addmm_(skewed.t(), flat)
                    dwindow[tile.group, piece] += weighed.sum(dim=0)
                    total = weight + window[tile.group, piece]
                d_features.addcmul_(total, g_den)
                if ctx.elementwise:
                    d_features.mul_(ctx.elementwise.slope(features))
                dq[here] = d_features
            for piece in tile.keys:
                here = (tile.group, tile.rows, piece)
                features, part = phi(k[here]), values[:, piece]
                d_features = torch.baddbmm(dweight, part, dkv.transpose(1, 2))
                if ctx.elementwise:
                    d_features.mul_(ctx.elementwise.slope(features))
                dk[here] = d_features
                dv[here] = torch.baddbmm(d_values[:, piece], features, dkv)
        return dq, dk, dv, dtable, dwindow, None
