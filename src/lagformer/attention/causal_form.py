"""Causal sums over pairs, o_i = Σ_{j ≤ i} (x_iᵀ y_j) z_j, in chunks: time O(T), memory O(T).

Every derivative of such a sum is such a sum, forwards or backwards in time:

    ∂x: Σ_{j ≤ i} (g_iᵀ z_j) y_j      ∂y: Σ_{i ≥ j} (z_jᵀ g_i) x_i      ∂z: Σ_{i ≥ j} (y_jᵀ x_i) g_i

so forward pass, backward pass and all higher orders are the one function ``_sums``, and nothing
but the arguments is stored.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from lagformer.attention.checks import broadcast_batch
from lagformer.attention.precision import without_autocast

# Positions whose pairs are multiplied out, and numbers a segment of such chunks holds: it stays in
# a core's own cache (benchmarks/ shows it).
CHUNK = 64
SEGMENT = 2**16


def causal_sums(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Σ_{j ≤ i} (x_iᵀ y_j) z_j for x, y (…,T,l) and z (…,T,c); leading dimensions broadcast."""
    batch = broadcast_batch(x, y, z)
    return _apply(False, *(t.expand(*batch, *t.shape[-2:]) for t in (x, y, z)))


def _apply(backwards: bool, *xyz: Tensor) -> Tensor:
    result: Tensor = _CausalSums.apply(*xyz, backwards)  # type: ignore[no-untyped-call]
    return result


class _CausalSums(torch.autograd.Function):
    """x, y (…,T,l), z (…,T,c) → (…,T,c), same leading dimensions; ``backwards``: over j ≥ i."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, z: Tensor, backwards: bool) -> Tensor:
        return _sums(backwards, x, y, z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.backwards = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, z = ctx.saved_tensors
        b = ctx.backwards
        differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        sums = _apply if differentiable else _sums
        needs = ctx.needs_input_grad
        return (
            sums(b, grad, z, y) if needs[0] else None,
            sums(not b, z, grad, x) if needs[1] else None,
            sums(not b, y, x, grad) if needs[2] else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        y: Tensor,
        z: Tensor,
        backwards: bool,
    ) -> tuple[Tensor, int]:
        """A mapped dimension is one more leading one."""
        mapped = [
            t.movedim(dim, 0) if dim is not None else t.expand(info.batch_size, *t.shape)
            for t, dim in zip((x, y, z), in_dims, strict=False)
        ]
        return _apply(backwards, *mapped), 0


def _sums(backwards: bool, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    *batch, T, l = x.shape
    c = z.shape[-1]
    out = z.new_empty(*batch, T, c)
    segments = pieces(T, max(l, c))
    for i in itertools.product(*(range(n) for n in batch)):
        state = z.new_zeros(1, l, c)  # Σ y_j z_jᵀ over the segments gone through
        for s, e in reversed(segments) if backwards else segments:
            size = min(CHUNK, e - s)
            chunks = (t[i][s:e].reshape(-1, size, t.shape[-1]) for t in (x, y, z))
            found, state = _segment(backwards, state, *chunks)
            out[i][s:e] = found.view(e - s, c)
    return out


def pieces(T: int, width: int) -> list[tuple[int, int]]:
    """(start, stop) of segments of whole chunks, and of the odd end, a chunk of its own."""
    length = max(CHUNK, SEGMENT // max(width, 1) // CHUNK * CHUNK)
    found = []
    for start in range(0, T, length):
        stop = min(start + length, T)
        whole = stop - (stop - start) % CHUNK
        found += [(s, e) for s, e in ((start, whole), (whole, stop)) if s < e]
    return found


def running_sums(start: Tensor, own: Tensor, *, backwards: bool = False) -> tuple[Tensor, Tensor]:
    """Before each chunk, start (n, …) and what the chunks before it own (n·m, …); after them all.

    One addition a chunk: a cumsum along them strides through memory.
    """
    order = own.unflatten(0, (len(start), -1)).unbind(1)
    *before, after = itertools.accumulate(order[::-1] if backwards else order, initial=start)
    return torch.stack(before[::-1] if backwards else before, dim=1).flatten(0, 1), after


def _segment(
    backwards: bool, state: Tensor, x: Tensor, y: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunks x, y (m, C, l), z (m, C, c) → their sums (m, C, c), and the state after them."""
    scores = torch.bmm(x, y.transpose(1, 2))
    scores = scores.triu_() if backwards else scores.tril_()
    before, state = running_sums(state, torch.bmm(y.transpose(1, 2), z), backwards=backwards)
    return torch.bmm(scores, z).baddbmm_(x, before), state
