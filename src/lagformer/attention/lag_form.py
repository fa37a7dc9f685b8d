"""The lag form and its derivatives: every sum over pairs that relative positions need.

    F(a, r, v, g) = Σ_ij (a_iᵀ r_{j-i}) (v_jᵀ g_i)

is linear in each of its four arguments. Its derivative by g, Σ_j (a_iᵀ r_{j-i}) v_j, is the
numerator of relative attention; the gradients of that numerator are F's three other derivatives
with the incoming gradient in the place of g; and so on for every order. So one function,
``derivatives``, is the forward and the backward pass alike, and nothing but the arguments is ever
stored: memory is O(T).

Shapes: a (G, B, T, l), r (G, N, l), v (G, B, S, c), g (G, B, T, c). G runs over the leading
dimensions in which tables differ (heads), B over those that share a table (batch). Row n of r is
the lag n - past; pairs whose lag is not in the table have no part in F.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagformer.attention.checks import broadcast_batch
from lagformer.attention.precision import without_autocast

A, R, V, G = range(4)

# Numbers a step works on: 1 MiB of float32 stays in a core's own cache (benchmarks/ shows it).
CACHED = 2**18
# Transforms at once, at least: alone, a long real one takes four times as long (MKL).
FFTS = 4
# Queries a block: more of them read the values less often, fewer waste less of the skewed product.
BLOCK = 32


class Sizes(NamedTuple):
    """T queries, S keys, and a table of the lags -past … future."""

    T: int
    S: int
    past: int
    future: int


def lag_table(rows: Tensor, past: int, future: int) -> Tensor:
    """Rows (…, 2R+1, l) for the lags -R … R → (…, past+1+future, l) for -past … future, clamped."""
    R = rows.shape[-2] // 2
    inner = rows[..., max(R - past, 0) : R + future + 1, :]
    if past <= R and future <= R:
        return inner
    left, right = (
        row.expand(*row.shape[:-2], max(n - R, 0), row.shape[-1])
        for row, n in ((rows[..., :1, :], past), (rows[..., -1:, :], future))
    )
    return torch.cat([left, inner, right], dim=-2)


def lag_sums(a: Tensor, r: Tensor, v: Tensor, past: int, *, method: str) -> Tensor:
    """Σ_j (a_iᵀ r_{j-i}) v_j: a (…,T,l), r (…,N,l) with lags -past … N-1-past, v (…,S,c) → (…,T,c).

    Leading dimensions broadcast. ``method`` "block": time O(T·N (l + c)); "fft": O(l c T log T).
    """
    method = "block" if torch.onnx.is_in_onnx_export() else method  # ONNX has no complex numbers
    sizes = Sizes(a.shape[-2], v.shape[-2], past, r.shape[-2] - 1 - past)
    layout = Layout.of(broadcast_batch(a, r, v), r.shape[:-2])
    table = r.reshape(layout.n_groups, *r.shape[-2:])
    args = [layout.align(a), table, layout.align(v), a.new_empty(0)]
    return layout.restore(_apply(G, sizes, method, args))


class Layout(NamedTuple):
    """Leading dimensions sorted into G, those in which tables differ, and B, those that share."""

    batch: tuple[int, ...]
    own: tuple[int, ...]
    shared: tuple[int, ...]

    @classmethod
    def of(cls, batch: Sequence[int], table_batch: Sequence[int]) -> Layout:
        """The layout for tables whose leading dimensions broadcast to ``batch``."""
        sizes = (1,) * (len(batch) - len(table_batch)) + tuple(table_batch)
        own = tuple(i for i, n in enumerate(sizes) if n != 1)
        return cls(tuple(batch), own, tuple(i for i in range(len(batch)) if i not in own))

    @property
    def n_groups(self) -> int:
        """Size of G."""
        return math.prod([self.batch[i] for i in self.own])

    @property
    def n_rows(self) -> int:
        """Size of B."""
        return math.prod([self.batch[i] for i in self.shared])

    def align(self, x: Tensor) -> Tensor:
        """(…, T, l) → (G, B, T, l), a view where it can be."""
        x = x.expand(*self.batch, *x.shape[-2:]).permute(*self.own, *self.shared, -2, -1)
        return x.reshape(self.n_groups, self.n_rows, *x.shape[-2:])

    def restore(self, x: Tensor) -> Tensor:
        """(G, B, T, c) → (…, T, c)."""
        order = (*self.own, *self.shared)
        x = x.view([*[self.batch[i] for i in order], *x.shape[-2:]])
        return x.permute([*[order.index(i) for i in range(len(order))], -2, -1])


class _LagForm(torch.autograd.Function):
    """F's derivative by one of its arguments, as a function of the three others."""

    @staticmethod
    def forward(by: int, sizes: Sizes, method: str, *args: Tensor) -> Tensor:
        return derivatives(args, (by,), sizes, method)[by]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.by, ctx.sizes, ctx.method, *args = inputs
        ctx.save_for_backward(*args)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        args = list(ctx.saved_tensors)
        args[ctx.by], absent = grad, args[ctx.by]
        wanted = [i for i in range(4) if i != ctx.by and ctx.needs_input_grad[3 + i]]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            found = {  # differentiable again
                i: _apply(i, ctx.sizes, ctx.method, [*args[:i], absent, *args[i + 1 :]])
                for i in wanted
            }
        else:
            found = derivatives(args, wanted, ctx.sizes, ctx.method)
        return (None, None, None, *(found.get(i) for i in range(4)))

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        by: int,
        sizes: Sizes,
        method: str,
        *args: Tensor,
    ) -> tuple[Tensor, int]:
        """A mapped dimension is one more in which tables may differ."""
        flat = []
        for i, (x, dim) in enumerate(zip(args, in_dims[3:], strict=True)):
            x = x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)
            flat.append(x.flatten(0, 1) if i != by else x.new_empty(0))
        result = _apply(by, sizes, method, flat)
        return result.unflatten(0, [info.batch_size, -1]), 0


def _apply(by: int, sizes: Sizes, method: str, args: Sequence[Tensor]) -> Tensor:
    result: Tensor = _LagForm.apply(by, sizes, method, *args)  # type: ignore[no-untyped-call]
    return result


def derivatives(
    args: Sequence[Tensor], wanted: Sequence[int], sizes: Sizes, method: str
) -> dict[int, Tensor]:
    """F's derivatives by the arguments ``wanted``. The only one wanted is not looked at."""
    return (_fft_derivatives if method == "fft" else _block_derivatives)(args, wanted, sizes)


def _zeros(args: Sequence[Tensor], wanted: Sequence[int], sizes: Sizes) -> dict[int, Tensor]:
    a, r, v, g = args
    rows = (a if V in wanted else v).shape[:2]
    l = (r if A in wanted else a).shape[-1]
    c = (v if G in wanted else g).shape[-1]
    shapes = {
        A: (*rows, sizes.T, l),
        R: (rows[0], sizes.past + 1 + sizes.future, l),
        V: (*rows, sizes.S, c),
        G: (*rows, sizes.T, c),
    }
    return {i: a.new_zeros(shapes[i]) for i in wanted}


def askew(scores: Tensor, n_q: int, n_k: int) -> Tensor:
    """Scores (…, n_q, n_q + n_k - 1) by lag, read as (…, n_q, n_k) by key: no copy.

    A query's keys start one lag earlier than the keys of the query before it.
    """
    width = n_q + n_k - 1
    n = scores.numel() // (n_q * width)
    return scores.as_strided((n, n_q, n_k), (n_q * width, width - 1, 1), n_q - 1)


def block_length(T: int) -> int:
    """Queries a block when T is cut into equal blocks of at most BLOCK."""
    return max(1, -(-T // max(1, -(-T // BLOCK))))


class _Block(NamedTuple):
    """Where a block of queries lies in a and g, its keys in v, its lags in the padded table."""

    groups: slice
    rows: slice
    queries: slice
    keys: slice
    lags: slice


def blocks(n_groups: int, n_rows: int, sizes: Sizes, n: int) -> Iterator[_Block]:
    """Cover every pair whose lag is in the table; a block's scores stay in the cache."""
    for t in range(0, sizes.T, n):
        stop = min(t + n, sizes.T)
        keys = slice(max(0, t - sizes.past), min(sizes.S, stop + sizes.future))
        if keys.start >= keys.stop:
            continue
        width = keys.stop - keys.start + stop - t - 1
        first = keys.start - (stop - 1) + sizes.past + n - 1
        rows = max(1, min(n_rows, CACHED // ((stop - t) * width)))
        groups = max(1, CACHED // ((stop - t) * width * rows)) if rows == n_rows else 1
        for i in range(0, n_groups, groups):
            for j in range(0, n_rows, rows):
                yield _Block(
                    slice(i, min(i + groups, n_groups)),
                    slice(j, min(j + rows, n_rows)),
                    slice(t, stop),
                    keys,
                    slice(first, first + width),
                )


def _block_derivatives(
    args: Sequence[Tensor], wanted: Sequence[int], sizes: Sizes
) -> dict[int, Tensor]:
    """Blocks of queries: the scores a_iᵀr_m of a block's lags, read askew as those of its keys."""
    a, r, v, g = args
    found = _zeros(args, wanted, sizes)
    n_groups, n_rows = (a if V in wanted else v).shape[:2]
    n = block_length(sizes.T)
    # Rows of zeros on both sides: a pair whose lag is not in the table scores 0.
    margin = (0, 0, n - 1, n - 1)
    r = F.pad(r, margin) if wanted != [R] and r.numel() else r
    if R in wanted:
        found[R] = F.pad(found[R], margin)
    v = v.contiguous()
    skewed: Tensor | None = None
    for block in blocks(n_groups, n_rows, sizes, n):
        queries = (block.groups, block.rows, block.queries)
        keys = (block.groups, block.rows, block.keys)
        lags = (block.groups, block.lags)
        n_q = block.queries.stop - block.queries.start
        n_k = block.keys.stop - block.keys.start
        many = (block.groups.stop - block.groups.start, block.rows.stop - block.rows.start)
        width, flat = n_q + n_k - 1, many[0] * many[1]

        if V in wanted or G in wanted:
            a_block = a[queries].reshape(many[0], many[1] * n_q, -1)
            scores = askew(torch.bmm(a_block, r[lags].transpose(1, 2)), n_q, n_k)
            if G in wanted:
                v_block = v[keys].reshape(flat, n_k, -1)
                found[G][queries] = torch.bmm(scores, v_block).view(*many, n_q, -1)
            if V in wanted:
                g_block = g[queries].reshape(flat, n_q, -1)
                summed = torch.bmm(scores.transpose(1, 2), g_block)
                found[V][keys] += summed.view(*many, n_k, -1)
        if A in wanted or R in wanted:
            g_block, v_block = g[queries].reshape(flat, n_q, -1), v[keys].reshape(flat, n_k, -1)
            if skewed is None or skewed.shape != (many[0], many[1] * n_q, width):
                skewed = v.new_zeros(many[0], many[1] * n_q, width)  # stays zero off the pairs
            askew(skewed, n_q, n_k).copy_(torch.bmm(g_block, v_block.transpose(1, 2)))
            if A in wanted:
                found[A][queries] = torch.bmm(skewed, r[lags]).view(*many, n_q, -1)
            if R in wanted:
                a_block = a[queries].reshape(many[0], many[1] * n_q, -1)
                found[R][lags] += torch.bmm(skewed.transpose(1, 2), a_block)
    if R in wanted and n > 1:
        found[R] = found[R][:, n - 1 : 1 - n]
    return found


def fast_length(n: int) -> int:
    """The smallest length ≥ n whose only prime factors are 2, 3 and 5 (3 and 5 sparingly)."""
    best = 1 << max(n - 1, 0).bit_length()
    for odd in (3, 5, 9, 15, 25, 27, 45, 75, 125):
        best = min(best, odd << max(0, (-(-n // odd) - 1).bit_length()))
    return best


def to_circle(table: Tensor, sizes: Sizes, length: int) -> Tensor:
    """(…, N) by lag → (…, length) as a circular filter, h_u = r_{-u}."""
    h = table.flip(-1)  # u = -future … past
    circle = h.new_zeros(*h.shape[:-1], length)
    circle[..., : sizes.past + 1] = h[..., sizes.future :]
    if sizes.future:
        circle[..., -sizes.future :] = h[..., : sizes.future]
    return circle


def from_circle(circle: Tensor, sizes: Sizes) -> Tensor:
    """The inverse of to_circle."""
    after = circle[..., circle.shape[-1] - sizes.future :]
    return torch.cat([after, circle[..., : sizes.past + 1]], dim=-1).flip(-1)


def _fft_derivatives(
    args: Sequence[Tensor], wanted: Sequence[int], sizes: Sizes
) -> dict[int, Tensor]:
    """Feature by feature, a circular correlation too long to wrap around; time comes last here."""
    a, r, v, g = args
    found = _zeros(args, wanted, sizes)
    T, S = sizes.T, sizes.S
    n_groups, n_rows = (a if V in wanted else v).shape[:2]
    l, c = (r if A in wanted else a).shape[-1], (v if G in wanted else g).shape[-1]
    if not T * S * n_groups * n_rows * l * c:
        return found
    length = fast_length(T + S - 1)
    if list(wanted) != [R]:
        h = torch.fft.rfft(to_circle(r.transpose(1, 2), sizes, length))
    if R in wanted:
        dh = torch.fft.rfft(v.new_zeros(n_groups, l, length))
    rows = max(1, min(n_rows, CACHED // (length * c)))
    channels = c if rows > 1 else min(c, max(FFTS, CACHED // length))
    for i, j, k in itertools.product(
        range(n_groups), range(0, n_rows, rows), range(0, c, channels)
    ):
        here = (i, slice(j, j + rows))
        some = (*here, slice(None), slice(k, k + channels))
        forward, backward = G in wanted or A in wanted, V in wanted or R in wanted
        if list(wanted) != [A]:
            a_t = a[here].transpose(1, 2).contiguous()
        if list(wanted) != [V]:
            v_hat = torch.fft.rfft(v[some].transpose(1, 2).contiguous(), n=length)
            v_conj = v_hat.conj().resolve_conj() if R in wanted else v_hat
        if list(wanted) != [G]:
            g_t = g[some].transpose(1, 2).contiguous()
        if G in wanted:
            dg = v_hat.new_zeros(*v_hat.shape[:2], T, dtype=v.dtype)
        if V in wanted:
            dv_hat = torch.zeros_like(torch.fft.rfft(g_t, n=length))
        for f in range(l):
            if forward:
                moved = torch.fft.irfft(v_hat * h[i, f], n=length)[..., :T]
                if G in wanted:
                    dg.addcmul_(moved, a_t[:, f : f + 1])
                if A in wanted:
                    found[A][here][..., f] += (moved * g_t).sum(dim=1)
            if backward:
                wave_hat = torch.fft.rfft(g_t * a_t[:, f : f + 1], n=length)
                if V in wanted:
                    dv_hat.addcmul_(wave_hat, h[i, f].conj())
                if R in wanted:
                    dh[i, f] += (wave_hat * v_conj).sum(dim=(0, 1))
        if V in wanted:
            found[V][some] = torch.fft.irfft(dv_hat, n=length)[..., :S].transpose(1, 2)
        if G in wanted:
            found[G][some] = dg.transpose(1, 2)
    if R in wanted:
        found[R] = from_circle(torch.fft.irfft(dh, n=length), sizes).transpose(1, 2)
    return found
