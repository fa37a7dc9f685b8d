"""Linear attention with relative positions: the content kernel plus a second one over lags."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.attention.band import PIECE, band_in_pieces, band_numerator
from lagformer.attention.checks import broadcast_batch, check_lags, check_method, check_qkv
from lagformer.attention.feature_maps import MapSpec, accumulation_dtype, map_queries, resolve
from lagformer.attention.fused import can_fuse, fused_attention
from lagformer.attention.lag_form import Layout, lag_sums, lag_table
from lagformer.attention.linear import content_sums, prepare
from lagformer.attention.normalise import (
    normalise,
    quarantine,
    release,
    split,
    with_weight,
    without_masked,
)


def relative_linear_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S c"],
    lags: Float[Tensor, "*batch M d"],
    *,
    feature_map: MapSpec = "elu+1",
    causal: bool = False,
    key_mask: Bool[Tensor, "*batch S"] | None = None,
    method: str = "auto",
) -> Float[Tensor, "*batch T c"]:
    """Average of v with sim(i,j) = φ(q_i)ᵀφ(k_j) + φ(q_i)ᵀφ(r_m), m = clamp(j - i, -R, R).

    o_i = φ(q_i)ᵀ(φ(K)ᵀV + S_i) / φ(q_i)ᵀ(φ(K)ᵀ1 + s_i), where S_i = Σ_j φ(r_m) v_jᵀ is a
    correlation along time and s_i = Σ_j φ(r_m) a window sum over lags. The sum of two positive
    kernels keeps relative positions (Shaw et al. 2018) linear (Katharopoulos et al. 2020).

    Args:
        q, k, v: any number of leading dimensions, none included, which broadcast; T ≠ S allowed
            when not causal.
        lags: r_{-R} … r_R, M = 2R + 1 odd. R = T - 1 is the full table; a shorter one makes the
            cost O(T·R) at most; a longer one serves shorter series with its middle.
        feature_map: a name, a FeatureMap or function, or a pair (for queries; for keys and lags).
        causal: query i sees keys j ≤ i only.
        key_mask: True = a real position. Masked keys leave numerator and denominator.
        method: how S is summed. "dense": every pair, O(T²) memory, for checking; "block": direct,
            in blocks, time O(T²(l + c)); "band": direct within |lag| < R and running sums beyond,
            O(T·R(l + c)); "fft": O(l c T log T); "auto": the quickest, by the shapes alone. All
            give the same numbers.

    A row without any weight gives zeros. Half types are summed in float32 and cast at the end.
    Raises ValueError for shapes or types that do not fit, an even M or an unknown method.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_lags(lags, q, broadcast_batch(q, k, v), ndim=2, name="lags")
    check_method(method)
    phi_q, phi_k = resolve(feature_map, q.shape[-1])
    dtype = accumulation_dtype(q.dtype)
    late = None
    k, v = without_masked(k, v, key_mask)
    if causal:
        k, v, late = quarantine(k, v)
    T, S = q.shape[-2], k.shape[-2]
    with torch.autocast(q.device.type, enabled=False):
        query, key, value = q.to(dtype), k.to(dtype), v.to(dtype)
        rows = lags.to(dtype)
        if method == "auto":
            l = getattr(phi_k, "num_features", lags.shape[-1])
            method = choose_method(T, S, lags.shape[-2] // 2, l, v.shape[-1], causal)
        plain = causal or key_mask is not None or not can_fuse()
        # The fused window sums are differences, which for S ≪ T would cancel.
        if method in ("block", "fft") and not plain and 2 * S >= T > 0:
            out = _fused(phi_q, phi_k, query, key, value, rows, method)
        elif method == "band" and not plain and T > PIECE and not _needs_grad(q, k, v, lags):
            out = band_in_pieces(phi_q, phi_k, query, key, value, phi_k(rows))
        else:
            query, key, phi_r = map_queries(phi_q, query), phi_k(key), phi_k(rows)
            positive = all(getattr(phi, "strictly_positive", False) for phi in (phi_q, phi_k))
            out = _sum_and_normalise(query, key, value, phi_r, causal, key_mask, method, positive)
    return release(out, late).to(q.dtype)


def _needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _fused(
    phi_q: Callable[[Tensor], Tensor],
    phi_k: Callable[[Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lags: Tensor,
    method: str,
) -> Tensor:
    layout = Layout.of(broadcast_batch(q, k, v), lags.shape[:-2])
    table = lag_table(lags, q.shape[-2] - 1, k.shape[-2] - 1)
    q, k, elementwise = prepare(phi_q, phi_k, q, k)
    table = table if elementwise else phi_k(table)
    table = table.reshape(layout.n_groups, *table.shape[-2:])
    aligned = (layout.align(q), layout.align(k), layout.align(v))
    return layout.restore(fused_attention(*aligned, table, elementwise, method))


def _sum_and_normalise(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    phi_r: Tensor,
    causal: bool,
    key_mask: Tensor | None,
    method: str,
    positive: bool,
) -> Tensor:
    """The formula, term by term; ``positive``: every pair has weight."""
    if key_mask is not None:
        phi_k = phi_k.masked_fill(~key_mask.unsqueeze(-1), 0)
    weighted = with_weight(v, key_mask)
    numerator, denominator = split(content_sums(phi_q, phi_k, weighted, causal=causal))
    if key_mask is None:
        window = lag_window_sums(phi_r, phi_q.shape[-2], phi_k.shape[-2], causal)
        lag_numerator = _lag_numerator(phi_q, phi_r, v, causal, method)
        lag_denominator = (phi_q * window).sum(dim=-1)
    else:
        lag_sum = _lag_numerator(phi_q, phi_r, weighted, causal, method)
        if method == "fft" and not positive:
            # An FFT's sum of nothing is a rounding error, not 0: count the pairs that have weight.
            some_q, some_r = ((x != 0).to(v.dtype) for x in (phi_q, phi_r))
            pairs = _lag_numerator(some_q, some_r, weighted[..., -1:], causal, method)
            lag_sum = lag_sum.masked_fill(pairs.round() == 0, 0)
        lag_numerator, lag_denominator = split(lag_sum)
    return normalise(numerator + lag_numerator, denominator + lag_denominator)


def choose_method(T: int, S: int, R: int, l: int, c: int, causal: bool) -> str:
    """The quickest exact method for these shapes; the rule's constants are from benchmarks/."""
    reach = R + 32 if causal else 2 * R + 32
    if reach < S // 2:
        S, near = reach, "band"
    else:
        S, near = (S // 2 if causal else S), "block"
    direct = S * (l + c)
    length = T + S
    return "fft" if near == "block" and direct > 8.7 * l * c * length.bit_length() else near


def _lag_numerator(
    phi_q: Tensor, phi_r: Tensor, value: Tensor, causal: bool, method: str
) -> Tensor:
    """Σ_j φ(q_i)ᵀφ(r_m) v_j, (…, T, c)."""
    T, S = phi_q.shape[-2], value.shape[-2]
    if method == "dense":
        R = phi_r.shape[-2] // 2
        i = torch.arange(T, device=phi_q.device).unsqueeze(1)
        lag = (torch.arange(S, device=phi_q.device) - i).clamp(-R, R)
        scores = phi_q @ phi_r.transpose(-1, -2)
        scores = scores.gather(-1, (lag + R).expand(*scores.shape[:-2], T, S))
        return (scores.tril() if causal else scores) @ value
    if method == "band":
        return band_numerator(phi_q, phi_r, value, causal)
    past, future = max(T - 1, 0), 0 if causal else max(S - 1, 0)
    table = lag_table(phi_r, past, future)
    if causal and method == "fft":
        return _causal_fft_numerator(phi_q, table, value)
    return lag_sums(phi_q, table, value, past, method=method)


def _causal_fft_numerator(phi_q: Tensor, table: Tensor, value: Tensor, base: int = 256) -> Tensor:
    """Divide and conquer: blocks of ``base`` directly; then, for every doubling, the queries of
    each second half and the keys of its first half by FFT, so that no key's rounding (nor NaN)
    can reach a query before it. ``table`` holds the lags -(T-1) … 0.
    """
    T = phi_q.shape[-2]
    halvings = max(0, (-(-T // base) - 1).bit_length())
    margin = (0, 0, 0, (base << halvings) - T)
    padded_table = F.pad(table, (0, 0, margin[-1], 0))
    a, v = (F.pad(x, margin).unflatten(-2, [-1, base]) for x in (phi_q, value))
    near = padded_table[..., -base:, :].unsqueeze(-3)
    total = lag_sums(a, near, v, base - 1, method="block")
    for level in range(halvings):
        half = base << level
        pairs = [x.flatten(-3, -2).unflatten(-2, (-1, 2, half)) for x in (a, v)]
        # Query i of the second half and key j of the first: lag j - i - half.
        across = padded_table[..., -2 * half : -1, :].unsqueeze(-3)
        far = lag_sums(
            pairs[0][..., 1, :, :], across, pairs[1][..., 0, :, :], half - 1, method="fft"
        )
        far = torch.stack([torch.zeros_like(far), far], dim=-3)
        total = total + far.flatten(-4, -2).unflatten(-2, (-1, base))
    return total.flatten(-3, -2)[..., :T, :]


def lag_window_sums(phi_r: Tensor, T: int, S: int, causal: bool) -> Tensor:
    """s_i = Σ_j φ(r_m), (…, T, l), from running sums along the table: O(T l).

    They run outwards from lag 0, so that a query's two sides add up: differences, which cancel,
    are left to queries beyond the last key.
    """
    R = phi_r.shape[-2] // 2
    # The table is small: float64 makes its sums exact (there is none on MPS).
    wide = phi_r if phi_r.device.type == "mps" else phi_r.double()
    i = torch.arange(T, device=phi_r.device)
    past = wide[..., : R + 1, :].flip(-2)
    sums = _running(past, i + 1)
    if not causal:
        future = wide[..., R + 1 :, :] if R else past
        sums = sums + _running(future, (S - 1 - i).clamp(min=0))
        if T > S:
            sums = sums - _running(past, (i + 1 - S).clamp(min=0))
    return sums.to(phi_r.dtype)


def _running(rows: Tensor, n: Tensor) -> Tensor:
    """Sum of the first n rows, for every n; the last row goes on for ever."""
    running = F.pad(rows.cumsum(dim=-2), (0, 0, 1, 0))
    beyond = (n - rows.shape[-2]).clamp(min=0).unsqueeze(-1)
    return running.index_select(-2, n.clamp(max=rows.shape[-2])) + beyond * rows[..., -1:, :]
