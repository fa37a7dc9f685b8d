"""The simpler alternative: one positive scalar per lag that multiplies the content weights.

    sim(i,j) = φ(q_i)ᵀφ(k_j) · w_m,   m = clamp(j - i, -R, R)        (Luo et al. 2021, section 3)

What has to be summed is Σ_j (x_iᵀy_j) w_{j-i} z_j. Its derivatives by x, y and z are sums of the
same kind, forwards or backwards in time, and the one by w collects (x_iᵀy_j)(g_iᵀz_j) along the
diagonals, whose derivatives are again of the first kind: two functions serve every order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.attention.causal_form import causal_sums
from lagformer.attention.checks import broadcast_batch, check_lags, check_method, check_qkv
from lagformer.attention.feature_maps import MapSpec, accumulation_dtype, map_queries, resolve
from lagformer.attention.lag_form import (
    CACHED,
    Layout,
    Sizes,
    askew,
    block_length,
    blocks,
    fast_length,
    from_circle,
    lag_table,
    to_circle,
)
from lagformer.attention.normalise import (
    normalise,
    quarantine,
    release,
    split,
    with_weight,
    without_masked,
)
from lagformer.attention.precision import without_autocast


def toeplitz_linear_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S c"],
    weights: Float[Tensor, "*batch M"],
    *,
    feature_map: MapSpec = "elu+1",
    causal: bool = False,
    key_mask: Bool[Tensor, "*batch S"] | None = None,
    method: str = "auto",
) -> Float[Tensor, "*batch T c"]:
    """Average of v with sim(i,j) = φ(q_i)ᵀφ(k_j)·w_m, m = clamp(j - i, -R, R).

    (Luo et al. 2021, Stable, Fast and Accurate: Kernelized Attention with Relative Positional
    Encoding, eq. 7, with w = exp(b).)

    Args:
        q, k, v, feature_map, causal, key_mask: as relative_linear_attention.
        weights: w_{-R} … w_R, positive, M = 2R + 1 odd.
        method: "dense": every pair at once; "block": direct, in blocks; "band": direct within
            |lag| < R, running sums beyond; "fft": O(l c T log T); "auto": by the shapes. All give
            the same numbers.

    A row without any weight gives zeros. Half types are summed in float32 and cast at the end.
    Raises ValueError for shapes or types that do not fit, an even M or an unknown method.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_lags(weights, q, broadcast_batch(q, k, v), ndim=1, name="weights")
    check_method(method)
    phi_q, phi_k = resolve(feature_map, q.shape[-1])
    dtype = accumulation_dtype(q.dtype)
    late = None
    k, v = without_masked(k, v, key_mask)
    if causal:
        k, v, late = quarantine(k, v)
    with torch.autocast(q.device.type, enabled=False):
        x, y, w = map_queries(phi_q, q.to(dtype)), phi_k(k.to(dtype)), weights.to(dtype)
        if key_mask is not None:
            y = y.masked_fill(~key_mask.unsqueeze(-1), 0)
        z = with_weight(v.to(dtype), key_mask)
        if method == "auto":
            method = _choose(q.shape[-2], k.shape[-2], w.shape[-1] // 2, x.shape[-1], z.shape[-1])
        out = normalise(*split(_weighted_sums(x, y, w, z, causal, method)))
    return release(out, late).to(q.dtype)


def _choose(T: int, S: int, R: int, l: int, c: int) -> str:
    if 2 * R + 64 < S:
        return "band"
    return "fft" if S * (l + c) > 6 * l * c * (T + S).bit_length() else "block"


def _weighted_sums(x: Tensor, y: Tensor, w: Tensor, z: Tensor, causal: bool, method: str) -> Tensor:
    """Σ_j (x_iᵀy_j) w_m z_j, over j ≤ i when causal; leading dimensions broadcast."""
    T, S, R = x.shape[-2], y.shape[-2], w.shape[-1] // 2
    if method == "dense":
        i = torch.arange(T, device=x.device).unsqueeze(1)
        lag = (torch.arange(S, device=x.device) - i).clamp(-R, R)
        scores = (x @ y.transpose(-1, -2)) * w[..., lag + R]
        return (scores.tril() if causal else scores) @ z
    if method == "band":
        R = max(R, 1)
        near = lag_weighted_sums(x, y, _table(w, R - 1, 0 if causal else R - 1), z, R - 1, "block")
        far = w[..., :1, None] * _running(x, y, z, R)
        if causal:
            return near + far
        back = _running(x.flip(-2), y.flip(-2), z.flip(-2), R + T - S).flip(-2)
        return near + far + w[..., -1:, None] * back
    past, future = max(T - 1, 0), 0 if causal else max(S - 1, 0)
    # Causal sums stay direct: an FFT's rounding would let the future touch the past.
    method = "fft" if method == "fft" and not causal else "block"
    return lag_weighted_sums(x, y, _table(w, past, future), z, past, method)


def _table(w: Tensor, past: int, future: int) -> Tensor:
    return lag_table(w.unsqueeze(-1), past, future).squeeze(-1)


def _running(x: Tensor, y: Tensor, z: Tensor, delay: int) -> Tensor:
    """Σ_{j ≤ i - delay} (x_iᵀ y_j) z_j: causal sums of queries moved ``delay`` steps earlier."""
    late, early = max(delay, 0), max(-delay, 0)
    T = x.shape[-2]
    x = F.pad(x[..., late:, :], (0, 0, early, 0))
    n = max(x.shape[-2], y.shape[-2])
    x, y, z = (F.pad(t, (0, 0, 0, n - t.shape[-2])) for t in (x, y, z))
    sums = causal_sums(x, y, z)[..., early : early + max(T - late, 0), :]
    return F.pad(sums, (0, 0, min(late, T), 0))


def lag_weighted_sums(x: Tensor, y: Tensor, w: Tensor, z: Tensor, past: int, method: str) -> Tensor:
    """Σ_j (x_iᵀy_j) w_{j-i} z_j over the lags -past … of w (…,N); leading dimensions broadcast."""
    method = "block" if torch.onnx.is_in_onnx_export() else method  # ONNX has no complex numbers
    layout = Layout.of(broadcast_batch(x, y, w.unsqueeze(-1), z), w.shape[:-1])
    table = w.reshape(layout.n_groups, w.shape[-1])
    return layout.restore(
        _sum(past, method, layout.align(x), layout.align(y), table, layout.align(z))
    )


def _sum(past: int, method: str, *xywz: Tensor) -> Tensor:
    result: Tensor = _Sum.apply(past, method, *xywz)  # type: ignore[no-untyped-call]
    return result


def _diagonals(past: int, N: int, method: str, *xygz: Tensor) -> Tensor:
    result: Tensor = _Diagonals.apply(past, N, method, *xygz)  # type: ignore[no-untyped-call]
    return result


def _pick(differentiable: Any, direct: Any) -> Any:
    return (
        differentiable if torch.is_grad_enabled() and not torch.compiler.is_compiling() else direct
    )


def _mapped(
    info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]
) -> list[Tensor]:
    """A mapped dimension is one more in which tables may differ."""
    return [
        (t.movedim(dim, 0) if dim is not None else t.expand(info.batch_size, *t.shape)).flatten(
            0, 1
        )
        for t, dim in zip(tensors, in_dims, strict=True)
    ]


class _Sum(torch.autograd.Function):
    """Σ_j (x_iᵀy_j) w_{j-i} z_j: x (G,B,T,l), y (G,B,S,l), w (G,N), z (G,B,S,c) → (G,B,T,c)."""

    @staticmethod
    def forward(past: int, method: str, x: Tensor, y: Tensor, w: Tensor, z: Tensor) -> Tensor:
        return _direct_sum(past, method, x, y, w, z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.past, ctx.method, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, w, z = ctx.saved_tensors
        sums, diagonals = _pick(_sum, _direct_sum), _pick(_diagonals, _direct_diagonals)
        future = w.shape[-1] - 1 - ctx.past
        back, needs, method = w.flip(-1), ctx.needs_input_grad[2:], ctx.method
        return (
            None,
            None,
            sums(ctx.past, method, g, z, w, y) if needs[0] else None,
            sums(future, method, z, g, back, x) if needs[1] else None,
            diagonals(ctx.past, w.shape[-1], method, x, y, g, z) if needs[2] else None,
            sums(future, method, y, x, back, g) if needs[3] else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, past: int, method: str, *xywz: Tensor) -> tuple[Tensor, int]:
        result = _sum(past, method, *_mapped(info, in_dims[2:], xywz))
        return result.unflatten(0, [info.batch_size, -1]), 0


class _Diagonals(torch.autograd.Function):
    """Σ_i (x_iᵀy_{i+m})(g_iᵀz_{i+m}) for m = -past … N-1-past, summed over B: (G, N)."""

    @staticmethod
    def forward(
        past: int, N: int, method: str, x: Tensor, y: Tensor, g: Tensor, z: Tensor
    ) -> Tensor:
        return _direct_diagonals(past, N, method, x, y, g, z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.past, ctx.N, ctx.method, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor | None, ...]:
        x, y, g, z = ctx.saved_tensors
        sums = _pick(_sum, _direct_sum)
        past, future, method = ctx.past, ctx.N - 1 - ctx.past, ctx.method
        back, needs = w.flip(-1), ctx.needs_input_grad[3:]
        return (
            None,
            None,
            None,
            sums(past, method, g, z, w, y) if needs[0] else None,
            sums(future, method, z, g, back, x) if needs[1] else None,
            sums(past, method, x, y, w, z) if needs[2] else None,
            sums(future, method, y, x, back, g) if needs[3] else None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, past: int, N: int, method: str, *xygz: Tensor
    ) -> tuple[Tensor, int]:
        result = _diagonals(past, N, method, *_mapped(info, in_dims[3:], xygz))
        return result.unflatten(0, [info.batch_size, -1]), 0


def _direct_sum(past: int, method: str, x: Tensor, y: Tensor, w: Tensor, z: Tensor) -> Tensor:
    n_groups, n_rows, T, l = x.shape
    S, c = z.shape[-2:]
    sizes = Sizes(T, S, past, w.shape[-1] - 1 - past)
    out = z.new_zeros(n_groups, n_rows, T, c)
    if not x.numel() or not z.numel():
        return out
    if method == "fft":
        length = fast_length(T + S - 1)
        h = torch.fft.rfft(to_circle(w, sizes, length))
        for here in _rows(n_groups, n_rows, length * c):
            x_t, y_t, z_t = (t[here].transpose(-1, -2).contiguous() for t in (x, y, z))
            total = z_t.new_zeros(*z_t.shape[:-1], T)
            for f in range(l):
                wave = torch.fft.rfft(z_t * y_t[:, f : f + 1], n=length) * h[here[0]]
                total.addcmul_(torch.fft.irfft(wave, n=length)[..., :T], x_t[:, f : f + 1])
            out[here] = total.transpose(-1, -2)
        return out
    n = block_length(T)
    w = F.pad(w, (n - 1, n - 1))
    for block in blocks(n_groups, n_rows, sizes, n):
        queries = (block.groups, block.rows, block.queries)
        keys = (block.groups, block.rows, block.keys)
        scores = x[queries] @ y[keys].transpose(-1, -2)
        scores *= w[block.groups, block.lags].unfold(-1, scores.shape[-1], 1).flip(1).unsqueeze(1)
        out[queries] = scores @ z[keys]
    return out


def _direct_diagonals(
    past: int, N: int, method: str, x: Tensor, y: Tensor, g: Tensor, z: Tensor
) -> Tensor:
    n_groups, n_rows, T, l = x.shape
    S, c = z.shape[-2:]
    sizes = Sizes(T, S, past, N - 1 - past)
    if not x.numel() or not z.numel():
        return x.new_zeros(n_groups, N)
    if method == "fft":
        length = fast_length(T + S - 1)
        total = torch.fft.rfft(x.new_zeros(n_groups, length))
        for here in _rows(n_groups, n_rows, length * c):
            x_t, y_t, g_t, z_t = (t[here].transpose(-1, -2).contiguous() for t in (x, y, g, z))
            for f in range(l):
                left = torch.fft.rfft(g_t * x_t[:, f : f + 1], n=length)
                right = torch.fft.rfft(z_t * y_t[:, f : f + 1], n=length)
                total[here[0]] += (left * right.conj()).sum(dim=(0, 1))
        return from_circle(torch.fft.irfft(total, n=length), sizes)
    n = block_length(T)
    out = x.new_zeros(n_groups, N + 2 * (n - 1))
    for block in blocks(n_groups, n_rows, sizes, n):
        queries = (block.groups, block.rows, block.queries)
        keys = (block.groups, block.rows, block.keys)
        pairs = x[queries] @ y[keys].transpose(-1, -2)
        pairs *= g[queries] @ z[keys].transpose(-1, -2)
        n_q, n_k = pairs.shape[-2:]
        by_lag = pairs.new_zeros(pairs.shape[0], n_q, n_q + n_k - 1)
        askew(by_lag, n_q, n_k).copy_(pairs.sum(dim=1))
        out[block.groups, block.lags] += by_lag.sum(dim=1)
    return out[:, n - 1 : n - 1 + N]


def _rows(n_groups: int, n_rows: int, per_row: int) -> list[tuple[int, slice]]:
    rows = max(1, CACHED // per_row)
    return [(i, slice(j, j + rows)) for i in range(n_groups) for j in range(0, n_rows, rows)]
