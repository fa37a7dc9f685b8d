"""The whole average and its gradient in one step, block by block in the cache.

    o_i = φ(q_i)ᵀ(φ(K)ᵀV + S_i) / φ(q_i)ᵀ(φ(K)ᵀ1 + s_i)

without masks and causality; S and s are zero for attention without positions. The same numbers as
the plain formulae of linear.py and relative.py in fewer trips to memory.

S needs no skewing here: with time running backwards along the keys, the lags of query i are rows
i, i+1, … of the table read backwards, an overlapping view of it. One product a query, batch × lags,
makes use of all of it; it takes a batch to be quick.

Shapes as in lag_form.py: q (G, B, T, d), k (G, B, S, d), v (G, B, S, c), and the table φ(r) for the
lags 1-T … S-1, (G, T+S-1, l), empty for attention without positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagformer.attention.lag_form import lag_sums
from lagformer.attention.normalise import normalise

# Numbers (scores, or features where there are no lags) a step works on, to stay in the cache.
CACHED = 2**18
# Queries in a block, and rows of a batch that make a product per query worth while.
BLOCK = 64
ENOUGH_ROWS = 8


class Elementwise(NamedTuple):
    """A map that acts by element: φ, φ into a given tensor, and its slope as a function of φ."""

    phi: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Tensor], None]
    slope: Callable[[Tensor], Tensor]


def can_fuse() -> bool:
    """False where a compiler or a function transform does the fusing, or needs plain formulae."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def worth_fusing(batch: int, T: int, S: int) -> bool:
    """With lags: rows enough for a product per query, windows wide enough to be differences."""
    return batch >= ENOUGH_ROWS and 2 * S >= T


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, elementwise: Elementwise | None
) -> Tensor:
    """Average of v for every query, (G, B, T, c); q and k are features if not ``elementwise``."""
    table = q.new_empty(0) if table is None else table
    return _Fused.apply(q, k, v, table, elementwise)[0]  # type: ignore[no-untyped-call, no-any-return]


def _plain(
    elementwise: Elementwise | None, q: Tensor, k: Tensor, v: Tensor, table: Tensor
) -> Tensor:
    """The same in differentiable operations: where second derivatives come from."""
    if elementwise:
        q, k = elementwise.phi(q), elementwise.phi(k)
    numerator = q @ (k.transpose(-1, -2) @ v)
    weight = k.sum(dim=-2, keepdim=True)
    if table.numel():
        past = q.shape[-2] - 1
        numerator = numerator + lag_sums(q, table.unsqueeze(1), v, past, method="block")
        one = v.new_ones(1, 1, k.shape[-2], 1)
        weight_of_lags = lag_sums(q, table.unsqueeze(1), one, past, method="block")
        return normalise(
            numerator, ((q * weight).sum(-1, keepdim=True) + weight_of_lags).squeeze(-1)
        )
    return normalise(numerator, (q * weight).sum(dim=-1))


class _Tile(NamedTuple):
    """Where one group and some of its rows are, and their queries in blocks."""

    here: tuple[int, slice]
    blocks: list[slice]


def _tiles(q: Tensor, S: int, with_lags: bool) -> Iterator[_Tile]:
    n_groups, n_rows, T, d = q.shape
    n = max(1, -(-T // max(1, -(-T // BLOCK))) if with_lags else T)
    rows = max(1, min(n_rows, CACHED // max(1, n * (S if with_lags else d))))
    rows = max(1, -(-n_rows // max(1, -(-n_rows // rows))))  # equal tiles
    blocks = [slice(t, min(t + n, T)) for t in range(0, T, n)]
    for i in range(n_groups):
        for j in range(0, n_rows, rows):
            yield _Tile((i, slice(j, min(j + rows, n_rows))), blocks)


class _LagWindows:
    """The table read backwards: its overlapping views, the sums over them, and their adjoints."""

    def __init__(self, table: Tensor, T: int, S: int) -> None:
        self.rows, self.T, self.S = table.flip(1), T, S
        # The table is small: float64 makes differences of its sums exact (there is none on MPS).
        self.wide = table.dtype if table.device.type == "mps" else torch.float64

    def view(self, group: int, block: slice) -> Tensor:
        """(n, S, l): row i, column s is the lag of query i and the s-th key from the end."""
        rows = self.rows[group]
        l = rows.shape[-1]
        start = rows.storage_offset() + block.start * l
        return rows.as_strided((block.stop - block.start, self.S, l), (l, l, 1), start)

    def sums(self) -> Tensor:
        """s (G, T, l): each view summed over its columns."""
        running = F.pad(self.rows.cumsum(1, dtype=self.wide), (0, 0, 1, 0))
        return (running[:, self.S :] - running[:, : self.T]).to(self.rows.dtype)

    def add_view(self, total: Tensor, block: slice, d_view: Tensor) -> None:
        """Add to ``total`` (N, l) what a view's gradient (n, S, l) is for the rows it shows."""
        n, width = len(d_view), self.S + len(d_view) - 1
        # One column more a row, read a column shorter: row i moves i columns on.
        askew = F.pad(d_view, (0, 0, 0, n)).flatten(0, 1)[: n * width]
        total[block.start : block.start + width] += askew.view(n, width, -1).sum(dim=0)

    def add_sums(self, total: Tensor, d_sums: Tensor) -> None:
        """Add to ``total`` (G, N, l) what the gradient of the sums (G, T, l) is for the rows."""
        running = F.pad(d_sums.cumsum(1, dtype=self.wide), (0, 0, 1, 0))
        last = running[:, -1:].expand(-1, self.S - 1, -1)
        until = torch.cat([running[:, 1:], last], dim=1)
        until[:, self.S :] -= running[:, 1 : self.T]
        total += until.to(total.dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, elementwise: Elementwise | None
    ) -> tuple[Tensor, ...]:
        T, S, with_lags = q.shape[2], k.shape[2], table.numel() > 0
        phi_q, phi_k = (q.new_empty(x.shape) if elementwise else x.contiguous() for x in (q, k))
        out, den = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(*q.shape[:3], 1)
        kv = q.new_empty(*q.shape[:2], phi_k.shape[-1], v.shape[-1])
        phi_k_sum = q.new_empty(*q.shape[:2], 1, phi_k.shape[-1])
        if not S or not T:
            return out.zero_(), den.fill_(1), phi_q, phi_k, kv, phi_k_sum
        if with_lags:
            windows = _LagWindows(table, T, S)
            window = windows.sums()
        scores = q.new_empty(0)
        for here, blocks in _tiles(q, S, with_lags):
            if elementwise:
                elementwise.write(q[here], phi_q[here])
                elementwise.write(k[here], phi_k[here])
            queries, keys, values = phi_q[here], phi_k[here], v[here]
            weight = torch.sum(keys, dim=1, keepdim=True, out=phi_k_sum[here])
            num = torch.bmm(queries, torch.bmm(keys.transpose(1, 2), values, out=kv[here]))
            if with_lags:
                values = values.flip(1)
                weight = weight + window[here[0]]
                for block in blocks:
                    lags, at = windows.view(here[0], block), queries[:, block].transpose(0, 1)
                    scores = _like(scores, len(lags), len(values), S)
                    torch.bmm(at, lags.transpose(1, 2), out=scores)
                    num[:, block] += torch.bmm(scores.transpose(0, 1), values)
            d = (queries * weight).sum(dim=-1, keepdim=True)
            d.masked_fill_(d == 0, 1)  # without weight num is 0 too
            torch.div(num, d, out=out[here])
            den[here] = d
        return out, den, phi_q, phi_k, kv, phi_k_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.elementwise = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, den, phi_q, phi_k, kv, phi_k_sum = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_second_derivatives(ctx.elementwise, inputs, grad), None)
        q, k, v, table = inputs
        T, S, with_lags = q.shape[2], k.shape[2], table.numel() > 0
        dq, dk, dv, d_table = (torch.empty_like(x) for x in inputs)
        d_table.zero_()
        if not S or not T:
            return dq.zero_(), dk.zero_(), dv.zero_(), d_table, None
        if with_lags:
            windows = _LagWindows(table, T, S)
            window, d_window = windows.sums(), table.new_zeros(len(table), T, table.shape[-1])
        scores = q.new_empty(0)
        for here, blocks in _tiles(q, S, with_lags):
            queries, keys, values = phi_q[here], phi_k[here], v[here]
            weight = phi_k_sum[here]
            g_num = grad[here] / den[here]
            g_den = (g_num * out[here]).sum(dim=-1, keepdim=True).neg_()
            weighed = queries * g_den
            d_kv = torch.bmm(queries.transpose(1, 2), g_num)
            d_queries = torch.bmm(g_num, kv[here].transpose(1, 2))
            d_keys = torch.baddbmm(weighed.sum(dim=1, keepdim=True), values, d_kv.transpose(1, 2))
            d_values = torch.bmm(keys, d_kv)
            if with_lags:
                values = values.flip(1)
                weight = weight + window[here[0]]
                d_window[here[0]] += weighed.sum(dim=0)
                d_back = torch.zeros_like(values)
                for block in blocks:
                    lags, at = windows.view(here[0], block), queries[:, block].transpose(0, 1)
                    g = g_num[:, block]
                    scores = _like(scores, len(lags), len(values), S)
                    torch.bmm(at, lags.transpose(1, 2), out=scores)
                    d_back.baddbmm_(scores.permute(1, 2, 0), g)
                    d_scores = scores.view(len(values), len(lags), S)
                    torch.bmm(g, values.transpose(1, 2), out=d_scores)
                    d_scores = d_scores.transpose(0, 1)
                    d_queries[:, block] += torch.bmm(d_scores, lags).transpose(0, 1)
                    d_lags = torch.bmm(d_scores.transpose(1, 2), at)
                    windows.add_view(d_table[here[0]], block, d_lags)
                torch.add(d_values, d_back.flip(1), out=dv[here])
            else:
                dv[here] = d_values
            d_queries.addcmul_(weight, g_den)
            if ctx.elementwise:
                torch.mul(d_queries, ctx.elementwise.slope(queries), out=dq[here])
                torch.mul(d_keys, ctx.elementwise.slope(keys), out=dk[here])
            else:
                dq[here], dk[here] = d_queries, d_keys
        if with_lags:
            windows.add_sums(d_table, d_window)
            d_table = d_table.flip(1)
        return dq, dk, dv, d_table, None


def _like(buffer: Tensor, *shape: int) -> Tensor:
    """The buffer itself if it has the shape: memory that is in the cache already."""
    return buffer if buffer.shape == shape else buffer.new_empty(shape)


def _second_derivatives(
    elementwise: Elementwise | None, inputs: list[Tensor], grad: Tensor
) -> list[Tensor | None]:
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(
        torch.autograd.grad(
            _plain(elementwise, *inputs), wanted, grad, create_graph=True, allow_unused=True
        )
    )
    return [next(found) if x.requires_grad else None for x in inputs]
