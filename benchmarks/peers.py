"""What the attention benchmark compares with: plain formulae, PyTorch's own, and other packages.

A peer is (name, function of (q, k, v, …), function that gives the exact result in float64).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagformer.attention import reference


class Path(NamedTuple):
    """Something to time, and the dense definition it has to agree with."""

    name: str
    run: Callable[..., Tensor]
    exact: Callable[..., Tensor]


def literal_fft(q: Tensor, k: Tensor, v: Tensor, lags: Tensor) -> Tensor:
    """Relative linear attention as it is written down: S as one (B, H, T, l, c) tensor by FFT."""
    T = q.shape[-2]
    phi_q, phi_k, phi_r = (F.elu(x) + 1 for x in (q, k, lags))
    filters = torch.fft.rfft(phi_r.flip(-2), n=3 * T, dim=-2)
    waves = torch.fft.rfft(v, n=3 * T, dim=-2)
    product = filters.unsqueeze(-1) * waves.unsqueeze(-2)
    sums = torch.fft.irfft(product, n=3 * T, dim=-3)[..., T - 1 : 2 * T - 1, :, :]
    numerator = phi_q @ (phi_k.transpose(-1, -2) @ v)
    numerator = numerator + torch.einsum("bhtl,bhtlc->bhtc", phi_q, sums)
    running = F.pad(phi_r.cumsum(-2), (0, 0, 1, 0))
    window = (running[..., T:, :] - running[..., :T, :]).flip(-2)
    weight = phi_k.sum(-2, keepdim=True) + window
    return numerator / (phi_q * weight).sum(-1, keepdim=True)


def eager_linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention as one would write it at first."""
    phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
    return phi_q @ (phi_k.transpose(-1, -2) @ v) / (phi_q @ phi_k.sum(-2).unsqueeze(-1))


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's softmax attention."""
    return F.scaled_dot_product_attention(q, k, v)


def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's causal softmax attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's softmax attention with a learned T×T bias."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _softmax_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias, dim=-1) @ v


LITERAL = Path("literal FFT formula", literal_fft, reference.relative_linear_attention)
EAGER = Path("eager formula", eager_linear, reference.linear_attention)
SDPA = Path("SDPA", sdpa, reference.softmax_attention)
SDPA_BIAS = Path("SDPA + learned bias", sdpa_bias, _softmax_bias)


def installed_peers(causal: bool) -> list[Path]:
    """The packages that are installed and compute what can be written down."""
    peers = []
    if importlib.util.find_spec("fast_transformers") and causal:
        from fast_transformers.attention import CausalLinearAttention
        from fast_transformers.masking import LengthMask, TriangularCausalMask

        def fast_transformers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            n, _, T, d = q.shape
            module = CausalLinearAttention(d)
            lengths = LengthMask(torch.full((n,), T, dtype=torch.long))
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return module(q, k, v, TriangularCausalMask(T), lengths, lengths).transpose(1, 2)

        def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return reference.linear_attention(q, k, v, causal=True)

        peers.append(Path("pytorch-fast-transformers", fast_transformers, exact))
    if causal:
        return peers
    if importlib.util.find_spec("linear_attention_transformer"):
        from linear_attention_transformer.linear_attention_transformer import linear_attn

        def softmax_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            weights = q.softmax(-1) @ k.softmax(-2).transpose(-1, -2)
            return weights @ v / q.shape[-1] ** 0.5

        peers.append(Path("linear-attention-transformer", linear_attn, softmax_keys))
    if importlib.util.find_spec("performer_pytorch"):
        from performer_pytorch.performer_pytorch import FastAttention

        def performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return FastAttention(q.shape[-1], no_projection=True)(q, k, v)

        def performer_exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            weights = q.softmax(-1) @ k.softmax(-2).transpose(-1, -2)
            return weights @ v / weights.sum(-1, keepdim=True)

        peers.append(Path("performer-pytorch", performer, performer_exact))
    if importlib.util.find_spec("taylor_series_linear_attention"):
        from taylor_series_linear_attention.attention import second_taylor_expansion

        def taylor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = second_taylor_expansion(q * q.shape[-1] ** -0.5, remove_even_power_dups=True)
            k = second_taylor_expansion(k, remove_even_power_dups=True)
            numerator = q @ (k.transpose(-1, -2) @ v)
            return numerator / (q @ k.sum(-2).unsqueeze(-1))

        def taylor_exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return reference.linear_attention(q, k, v, feature_map="taylor2")

        peers.append(Path("taylor-series-linear-attention", taylor, taylor_exact))
    return peers
