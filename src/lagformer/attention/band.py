"""Short tables on long sequences: lags nearer than R directly, all others by running sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lagformer.attention.feature_maps import map_queries
from lagformer.attention.lag_form import lag_sums, lag_table
from lagformer.attention.normalise import normalise, split, with_weight

# Queries a piece, where no gradient asks for everything at once.
PIECE = 2**14


def band_numerator(phi_q: Tensor, phi_r: Tensor, value: Tensor, causal: bool) -> Tensor:
    """Lags nearer than R by blocks; the rest share r_{-R} or r_R, so running sums of v do."""
    T, S = phi_q.shape[-2], value.shape[-2]
    R = max(phi_r.shape[-2] // 2, 1)
    past, future = R - 1, 0 if causal else R - 1
    near = lag_sums(phi_q, lag_table(phi_r, past, future), value, past, method="block")
    before = _shifted(value.cumsum(dim=-2), R, T)  # Σ_{j ≤ i-R} v_j
    far = (phi_q @ phi_r[..., :1, :].transpose(-1, -2)) * before
    if not causal:
        # Σ_{j ≥ i+R} v_j, as the running sum from the end
        after = _shifted(value.flip(-2).cumsum(dim=-2), R + T - S, T).flip(-2)
        far = far + (phi_q @ phi_r[..., -1:, :].transpose(-1, -2)) * after
    return near + far


def _shifted(running: Tensor, shift: int, T: int) -> Tensor:
    """Rows running[i - shift] for i = 0 … T-1: zeros before the first, the last one after it."""
    S = running.shape[-2]
    zeros, after = min(max(shift, 0), T), max(T - shift - S, 0)
    middle = running[..., max(-shift, 0) : max(T - shift, 0), :]
    last = running[..., -1:, :] if S else middle.new_zeros(*middle.shape[:-2], 1, middle.shape[-1])
    middle = F.pad(middle, (0, 0, zeros, 0))
    missing = T - middle.shape[-2]
    if after and missing:
        middle = torch.cat([middle, last.expand(*last.shape[:-2], missing, last.shape[-1])], -2)
    return middle


def band_in_pieces(
    phi_q: Callable[[Tensor], Tensor],
    phi_k: Callable[[Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi_r: Tensor,
) -> Tensor:
    """The whole average without gradients, a piece of queries at a time: memory for the output."""
    T, S, R = q.shape[-2], k.shape[-2], max(phi_r.shape[-2] // 2, 1)
    near = lag_table(phi_r, R - 1, R - 1)
    first, last = (row.transpose(-1, -2) for row in (phi_r[..., :1, :], phi_r[..., -1:, :]))

    def weighted(start: int, stop: int) -> Tensor:
        """z_j = (v_j, 1) for start ≤ j < stop, zeros where there is no key."""
        inside = slice(min(max(start, 0), S), min(max(stop, 0), S))
        before = min(max(-start, 0), stop - start)
        after = stop - start - before - (inside.stop - inside.start)
        return F.pad(with_weight(v[..., inside, :], None), (0, 0, before, after))

    content = sum(
        phi_k(k[..., s : s + PIECE, :]).transpose(-1, -2) @ weighted(s, min(s + PIECE, S))
        for s in range(0, S, PIECE)
    )
    pieces = [(s, min(s + PIECE, T)) for s in range(0, T, PIECE)]
    tail = weighted(T + R, max(S, T + R)).sum(dim=-2, keepdim=True)
    tails = {}  # Σ_{j ≥ stop + R} z_j
    for s, e in reversed(pieces):
        tails[e] = tail
        tail = tail + weighted(s + R, e + R).sum(dim=-2, keepdim=True)
    older = torch.zeros_like(tail)  # Σ_{j < start - R} z_j
    out = []
    for s, e in pieces:
        x = map_queries(phi_q, q[..., s:e, :])
        before = older + weighted(s - R, e - R).cumsum(dim=-2)
        after = tails[e] + weighted(s + R, e + R).flip(-2).cumsum(dim=-2).flip(-2)
        sums = x @ content + (x @ first) * before + (x @ last) * after
        start = s - R + 1  # local lags are R - 1 more: the window starts that much earlier
        sums = sums + lag_sums(x, near, weighted(start, e + R - 1), 0, method="block")
        out.append(normalise(*split(sums)))
        older = before[..., -1:, :]
    return torch.cat(out, dim=-2)
