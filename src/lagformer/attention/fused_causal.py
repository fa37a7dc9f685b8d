"""The causal average and its gradient in one step, segment by segment in the cache.

    o_i = φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j)

without masks: the numbers of linear.py's plain formula, whose three gradients share here the
scores of a segment's chunks, the features and the states before and after each chunk.

Shapes: q, k (G, B, T, d), v (G, B, T, c), as in fused_linear.py. A segment is n rows of m chunks,
n·m products at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lagformer.attention.causal_form import CHUNK, SEGMENT, causal_sums, pieces, running_sums
from lagformer.attention.fused import Elementwise, second_derivatives
from lagformer.attention.normalise import normalise, split, with_weight
from lagformer.attention.precision import without_autocast


def fused_causal_attention(
    q: Tensor, k: Tensor, v: Tensor, elementwise: Elementwise | None
) -> Tensor:
    """Average of v (G, B, T, c) over the keys j ≤ i; q and k are features if nothing maps them."""
    result: Tensor = _FusedCausal.apply(q, k, v, elementwise)  # type: ignore[no-untyped-call]
    return result


def _plain(elementwise: Elementwise | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in differentiable operations: where second derivatives come from."""
    if elementwise:
        q, k = elementwise.phi(q), elementwise.phi(k)
    return normalise(*split(causal_sums(q, k, with_weight(v, None))))


Rows = tuple[int, slice]


def _rows(q: Tensor, v: Tensor) -> Iterator[Rows]:
    """Short rows are worked on together."""
    n_groups, n_rows, T, l = q.shape
    rows = max(1, SEGMENT // max(1, T * max(l, v.shape[-1])))
    for group, i in itertools.product(range(n_groups), range(0, n_rows, rows)):
        yield group, slice(i, i + rows)


class _Segment:
    """Features, values and scores of the chunks of some rows from s to e."""

    def __init__(
        self,
        rows: Rows,
        s: int,
        e: int,
        elementwise: Elementwise | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> None:
        self.here = (*rows, slice(s, e))
        self.size = min(CHUNK, e - s)
        x, y = q[self.here], k[self.here]
        if elementwise:
            x, y = (elementwise.write(t, t.new_empty(t.shape)) for t in (x, y))
        self.x, self.y, self.z = self.chunks(x), self.chunks(y), self.chunks(v[self.here])

    def chunks(self, t: Tensor) -> Tensor:
        """(n, e-s, w) → (n·m, C, w)."""
        return t.reshape(-1, self.size, t.shape[-1])

    def scores(self) -> Tensor:
        """x_iᵀy_j for j ≤ i, (n·m, C, C)."""
        return torch.bmm(self.x, self.y.transpose(1, 2)).tril_()

    def states(self, kv: Tensor, k_sum: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Σ y zᵀ (n·m, l, c) and Σ y (n·m, 1, l) before each chunk; both after the last one."""
        before, kv = running_sums(kv, torch.bmm(self.y.transpose(1, 2), self.z))
        sums_before, k_sum = running_sums(k_sum, self.y.sum(dim=1, keepdim=True))
        return before, sums_before, kv, k_sum


class _FusedCausal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, elementwise: Elementwise | None
    ) -> Tensor:
        (*batch, T, l), c = q.shape, v.shape[-1]
        segments = pieces(T, max(l, c))
        out, den = v.new_empty(*batch, T, c), v.new_empty(*batch, T, 1)
        # The states before each segment: going back in time they cannot be had by subtraction.
        kvs = v.new_zeros(len(segments) + 1, *batch, l, c)
        k_sums = v.new_zeros(len(segments) + 1, *batch, 1, l)
        for rows in _rows(q, v):
            for i, (s, e) in enumerate(segments):
                at = _Segment(rows, s, e, elementwise, q, k, v)
                kv, k_sum, kvs[i + 1][rows], k_sums[i + 1][rows] = at.states(
                    kvs[i][rows], k_sums[i][rows]
                )
                scores = at.scores()
                num = torch.bmm(scores, at.z).baddbmm_(at.x, kv)
                d = scores.sum(dim=-1, keepdim=True).baddbmm_(at.x, k_sum.transpose(1, 2))
                d.masked_fill_(d == 0, 1)  # without weight num is 0 too
                out[at.here] = num.div_(d).view(-1, e - s, c)
                den[at.here] = d.view(-1, e - s, 1)
        ctx.elementwise, ctx.segments = elementwise, segments
        ctx.save_for_backward(q, k, v, out, den, kvs, k_sums)
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, den, kvs, k_sums = ctx.saved_tensors
        elementwise = ctx.elementwise
        if torch.is_grad_enabled():
            return (*second_derivatives(_plain, elementwise, [q, k, v], grad), None)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for rows in _rows(q, v):
            # Over the chunks after: Σ x gᵀ and Σ x g_den, what kv and k_sum are in the gradients.
            later, later_sum = torch.zeros_like(kvs[0][rows]), torch.zeros_like(k_sums[0][rows])
            for i, (s, e) in reversed(list(enumerate(ctx.segments))):
                at = _Segment(rows, s, e, elementwise, q, k, v)
                kv, k_sum, *_ = at.states(kvs[i][rows], k_sums[i][rows])
                g = at.chunks(grad[at.here]) / at.chunks(den[at.here])
                g_den = (g * at.chunks(out[at.here])).sum(dim=-1, keepdim=True).neg_()
                after, later = running_sums(
                    later, torch.bmm(at.x.transpose(1, 2), g), backwards=True
                )
                sum_after, later_sum = running_sums(
                    later_sum, torch.bmm(g_den.transpose(1, 2), at.x), backwards=True
                )
                scores = at.scores()
                d_scores = torch.bmm(g, at.z.transpose(1, 2)).add_(g_den).tril_()
                dx = torch.bmm(d_scores, at.y).baddbmm_(g, kv.transpose(1, 2))
                dx.addcmul_(g_den, k_sum)
                dy = torch.bmm(d_scores.transpose(1, 2), at.x).add_(sum_after)
                dy.baddbmm_(at.z, after.transpose(1, 2))
                dz = torch.bmm(scores.transpose(1, 2), g).baddbmm_(at.y, after)
                if elementwise:
                    dx *= elementwise.slope(at.x)
                    dy *= elementwise.slope(at.y)
                for d, found in ((dq, dx), (dk, dy), (dv, dz)):
                    d[at.here] = found.view(-1, e - s, found.shape[-1])
        return dq, dk, dv, None
