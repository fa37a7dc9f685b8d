"""The whole average and its gradient in one step, block by block in the cache.

    o_i = φ(q_i)ᵀ(φ(K)ᵀV + S_i) / φ(q_i)ᵀ(φ(K)ᵀ1 + s_i)

without masks and causality. The same numbers as the plain formula of relative.py in fewer trips to
memory, and with less of it: what is made for one tile of (heads, batch) is gone before the next.

Shapes as in lag_form.py: q (G, B, T, d), k (G, B, S, d), v (G, B, S, c), and the table r for the
lags 1-T … S-1, (G, T+S-1, d).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagformer.attention.lag_form import lag_sums
from lagformer.attention.lag_windows import LagWindows
from lagformer.attention.normalise import normalise
from lagformer.attention.precision import without_autocast

# Numbers (scores, or features without lags) a step works on, to stay in the cache.
CACHED = 2**18
# Features kept for the backward pass, at most: fresh memory for more takes longer than φ does.
KEPT = 2**22


class Elementwise(NamedTuple):
    """A map that acts by element: φ, φ into a given tensor, and its slope as a function of φ."""

    phi: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def can_fuse() -> bool:
    """False where a compiler or a function transform does the fusing, or needs plain formulae."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    elementwise: Elementwise | None,
    method: str,
) -> Tensor:
    """Average of v for every query, (G, B, T, c).

    q, k and the table are features already if there is no ``elementwise`` to map them with;
    ``method``, "block" or "fft", is how the sums over lags are taken.
    """
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, table))
    keep = keep and elementwise is not None and q.numel() + k.numel() <= KEPT
    result: Tensor = _Fused.apply(q, k, v, table, elementwise, method, keep)[0]  # type: ignore[no-untyped-call]
    return result


def _plain(
    elementwise: Elementwise | None, q: Tensor, k: Tensor, v: Tensor, table: Tensor
) -> Tensor:
    """The same in differentiable operations: where second derivatives come from."""
    if elementwise:
        q, k, table = elementwise.phi(q), elementwise.phi(k), elementwise.phi(table)
    numerator = q @ (k.transpose(-1, -2) @ v)
    weight = (q * k.sum(dim=-2, keepdim=True)).sum(dim=-1)
    past = q.shape[-2] - 1
    numerator = numerator + lag_sums(q, table.unsqueeze(1), v, past, method="block")
    one = v.new_ones(1, 1, k.shape[-2], 1)
    weight_of_lags = lag_sums(q, table.unsqueeze(1), one, past, method="block")
    return normalise(numerator, weight + weight_of_lags.squeeze(-1))


def _tiles(q: Tensor, per_row: int) -> Iterator[tuple[int, slice]]:
    """(group, rows) in equal tiles of about CACHED numbers."""
    n_groups, n_rows = q.shape[:2]
    rows = max(1, min(n_rows, CACHED // max(1, per_row)))
    rows = max(1, -(-n_rows // max(1, -(-n_rows // rows))))
    for i in range(n_groups):
        for j in range(0, n_rows, rows):
            yield i, slice(j, min(j + rows, n_rows))


def _windows(
    q: Tensor, k: Tensor, table: Tensor, elementwise: Elementwise | None, method: str
) -> LagWindows:
    if elementwise:
        table = elementwise.write(table, torch.empty_like(table))
    return LagWindows.of(table, q.shape[2], k.shape[2], n_rows=q.shape[1], method=method)


def _per_row(q: Tensor, k: Tensor, v: Tensor, windows: LagWindows) -> int:
    if windows.quick:
        return windows.per_row
    features = max(q.shape[2] * q.shape[3], k.shape[2] * max(k.shape[3], v.shape[3]))
    # A long sum over lags has buffers of its own beside the tile's ten: eight times smaller tiles.
    return 8 * features


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        elementwise: Elementwise | None,
        method: str,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        windows = _windows(q, k, table, elementwise, method)
        # Beside long sums over lags, making features anew is not felt.
        keep = keep and windows.quick
        phi_q, phi_k = (q.new_empty(x.shape) if keep else x for x in (q, k))
        out, den = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(*q.shape[:3], 1)
        kv = q.new_empty(*q.shape[:2], k.shape[-1], v.shape[-1])
        k_sum = q.new_empty(*q.shape[:2], 1, k.shape[-1])
        kept = (out, den, kv, k_sum, *((phi_q, phi_k) if keep else ()))
        if not out.numel() or not k.numel():
            return (out.zero_(), den.fill_(1), *kept[2:])
        for here in _tiles(q, _per_row(q, k, v, windows)):
            queries, keys, values = phi_q[here], phi_k[here], v[here]
            if elementwise:
                queries, keys = (
                    elementwise.write(x[here], x_[here] if keep else torch.empty_like(x[here]))
                    for x, x_ in ((q, phi_q), (k, phi_k))
                )
            weight = torch.sum(keys, dim=1, keepdim=True, out=k_sum[here])
            num = torch.bmm(queries, torch.bmm(keys.transpose(1, 2), values, out=kv[here]))
            windows.add_numerator(num, here[0], queries, values)
            weight = weight + windows.sums[here[0]]
            d = (queries * weight).sum(dim=-1, keepdim=True)
            d.masked_fill_(d == 0, 1)  # without weight num is 0 too
            torch.div(num, d, out=out[here])
            den[here] = d
        return kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.elementwise, ctx.method, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for what is only kept
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        q, k, v, table, out, den, kv, k_sum, *features = ctx.saved_tensors
        elementwise = ctx.elementwise
        if torch.is_grad_enabled():
            inputs = [q, k, v, table]
            return (*second_derivatives(_plain, elementwise, inputs, grad), None, None, None)
        windows = _windows(q, k, table, elementwise, ctx.method)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if not out.numel() or not k.numel():
            return dq.zero_(), dk.zero_(), dv.zero_(), torch.zeros_like(table), None, None, None
        for here in _tiles(q, _per_row(q, k, v, windows)):
            queries, keys = (x[here] for x in features or (q, k))
            if elementwise and not features:
                queries, keys = (elementwise.write(x, torch.empty_like(x)) for x in (queries, keys))
            values, weight = v[here], k_sum[here] + windows.sums[here[0]]
            g_num = grad[here] / den[here]
            g_den = (g_num * out[here]).sum(dim=-1, keepdim=True).neg_()
            weighed = queries * g_den
            d_kv = torch.bmm(queries.transpose(1, 2), g_num)
            d_queries = torch.bmm(g_num, kv[here].transpose(1, 2))
            d_keys = weighed.sum(dim=1, keepdim=True)
            d_keys = torch.baddbmm(d_keys, values, d_kv.transpose(1, 2))
            d_values = torch.bmm(keys, d_kv)
            windows.d_sums[here[0]] += weighed.sum(dim=0)
            windows.add_gradients(d_queries, d_values, here[0], queries, values, g_num)
            d_queries.addcmul_(weight, g_den)
            if elementwise:
                torch.mul(d_queries, elementwise.slope(queries), out=dq[here])
                torch.mul(d_keys, elementwise.slope(keys), out=dk[here])
            else:
                dq[here], dk[here] = d_queries, d_keys
            dv[here] = d_values
        d_table = windows.d_table()
        if elementwise:
            d_table *= elementwise.slope(windows.table)
        return dq, dk, dv, d_table, None, None, None


def second_derivatives(
    plain: Callable[..., Tensor],
    elementwise: Elementwise | None,
    inputs: list[Tensor],
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients by ``inputs`` as differentiable functions, through the ``plain`` formula."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(
        torch.autograd.grad(
            plain(elementwise, *inputs), wanted, grad, create_graph=True, allow_unused=True
        )
    )
    return [next(found) if x.requires_grad else None for x in inputs]
