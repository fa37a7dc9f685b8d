"""The lag kernels of any trained model, and the period each one corresponds to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from lagformer.attention import RelativeLinearAttention, ToeplitzLinearAttention
from lagformer.model import Lagformer
from lagformer.report.figures_lags import head_kernels
from lagformer.training.loop import seeded

CHANCE = 0.01  # a period is called clear if noise shows one as strong less often


@dataclass(frozen=True)
class Period:
    """The strongest period of a kernel."""

    lags: float
    """Its length in lags, that is in tokens."""
    chance: float
    """How often white noise has a period at least as strong: Fisher's g test."""

    @property
    def clear(self) -> bool:
        """Whether it is hardly chance."""
        return self.chance < CHANCE


@dataclass(frozen=True)
class HeadKernel:
    """The weight a head gives to each lag."""

    block: int
    head: int
    """Both count from 1."""
    lags: NDArray[np.float64]
    """(M,) j − i in samples."""
    weight: NDArray[np.float64]
    """(M,) over its mean over the lags."""
    untrained: tuple[float, float] | None
    """The middle 95 % of the weights as they are drawn before training; None where they are 1."""
    share: float | None
    """Part of the head's similarities that comes from lags, not from keys; None if not a sum."""
    samples_per_token: float
    period: Period | None
    """In tokens; times `samples_per_token` it is in samples. None: too few lags, or all alike."""


@torch.no_grad()
def kernels_of(model: Lagformer, x: Float[Tensor, "n C L"], *, seed: int = 0) -> list[HeadKernel]:
    """Return the kernel of every head of every attention module with lags, in order.

    Vector lags are weighed by the mean query of the series x: φ(q)ᵀφ(r_m). Modules need not see
    the same tokens: a module's samples per token are those of its own input.
    """
    model = copy.deepcopy(model).double().cpu().eval()
    kinds = (RelativeLinearAttention, ToeplitzLinearAttention)
    modules = [m for m in model.modules() if isinstance(m, kinds)]
    inputs: dict[int, Tensor] = {}

    def keep(index: int) -> Callable[..., None]:
        return lambda _, args: inputs.__setitem__(index, args[0])

    hooks = [m.register_forward_pre_hook(keep(i)) for i, m in enumerate(modules)]
    model(x.double())
    for hook in hooks:
        hook.remove()
    found = []
    for block, module in enumerate(modules, start=1):
        tokens = inputs[block - 1]
        length, patch, T = x.shape[2], model.config.patch_length, tokens.shape[1]
        per_token = float(patch) if -(-length // patch) == T else length / T
        lags = per_token * np.arange(-module.max_lag, module.max_lag + 1, dtype=np.float64)
        bands: list[tuple[float, float]] | list[None]
        shares: list[float] | list[None]
        if isinstance(module, RelativeLinearAttention):
            with seeded(seed, block):
                weights, band, share = (t.numpy() for t in head_kernels(module, tokens))
            bands, shares = [(float(a), float(b)) for a, b in band], share.tolist()
        else:
            weights = module.log_weights.exp().numpy()
            weights = weights / weights.mean(axis=1, keepdims=True)
            bands, shares = [None] * len(weights), [None] * len(weights)
        found += [
            HeadKernel(
                block, head, lags, w, bands[head - 1], shares[head - 1], per_token, period(w)
            )
            for head, w in enumerate(weights, start=1)
        ]
    return found


def period(kernel: Float64[np.ndarray, " M"]) -> Period | None:
    """Return the strongest period of a kernel; None for less than 9 lags, or all of one weight.

    A parabola is taken off (the rise towards lag 0 is no period). The period is that of the
    periodogram's highest ordinate among those of at least two turns, refined by its neighbours;
    its chance is that of so large a share of the total in white noise (Fisher 1929, first term).
    """
    M = len(kernel)
    if M < 9:
        return None
    at = np.linspace(-1, 1, M)
    trend = np.polynomial.Polynomial.fit(at, kernel, 2)(at)
    power = np.abs(np.fft.rfft(kernel - trend))[2 : (M - 1) // 2 + 1] ** 2
    if power.sum() <= 1e-18 * M**2:  # rounding
        return None
    top = int(power.argmax())
    g = power[top] / power.sum()
    shift = 0.0
    if 0 < top < len(power) - 1:  # the peak of the parabola through three ordinates
        before, peak, after = power[top - 1 : top + 2]
        shift = (after - before) / (2 * (2 * peak - before - after))
    chance = min(1.0, len(power) * (1 - g) ** (len(power) - 1))
    return Period(float(M / (top + 2 + shift)), float(chance))
