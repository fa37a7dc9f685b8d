"""Numerator over denominator, and what keeps the two clean."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator (…,T,c) over denominator (…,T); where the latter is exactly 0, zeros.

    No eps: it would bias the average. Without weight the numerator is 0 too, and dividing it by 1
    gives the zeros, gradient included.
    """
    denominator = denominator.unsqueeze(-1)
    return numerator / denominator.masked_fill(denominator == 0, 1)


def without_masked(k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Zero the masked keys and values: what they hold, NaN included, reaches no gradient."""
    if key_mask is None:
        return k, v
    hide = ~key_mask.unsqueeze(-1)
    return k.masked_fill(hide, 0), v.masked_fill(hide, 0)


def with_weight(v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(…,S,c) → (…,S,c+1): a last column that counts the real keys; masked values are zero already.

    What a kernel sums of the first c columns is its numerator, of the last its denominator.
    """
    if key_mask is None:
        return torch.cat([v, v.new_ones(()).expand(*v.shape[:-1], 1)], dim=-1)
    return torch.cat([v, key_mask.unsqueeze(-1).expand(*v.shape[:-1], 1).to(v.dtype)], dim=-1)


def split(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of what was summed ``with_weight``."""
    return sums[..., :-1], sums[..., -1]


def quarantine(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zero the keys with NaN or inf, and tell the causal queries that see one: (…,T) or None.

    A chunk multiplies future pairs by zero, and 0·NaN = NaN would reach the past.
    """
    untraced = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    if untraced and k.device.type == "cpu" and bool((k.sum() + v.sum()).isfinite()):
        return k, v, None
    bad = ~(k.isfinite().all(dim=-1) & v.isfinite().all(dim=-1))
    hide = bad.unsqueeze(-1)
    return k.masked_fill(hide, 0), v.masked_fill(hide, 0), bad.cumsum(dim=-1) > 0


def release(out: Tensor, late: Tensor | None) -> Tensor:
    """NaN for the queries that see a quarantined key."""
    return out if late is None else out.masked_fill(late.unsqueeze(-1), torch.nan)
