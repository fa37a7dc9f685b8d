"""Augmentations for the training loop, and the dither that hides a digitisation.

Every function draws from the generator it is given and leaves its input and the global state alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lagformer.data.collection import Collection

NOISY = 0.2  # part of the series that `coloured_noise` is added to
WHITE = 0.5  # part of them whose noise is white


def circular_shift(
    x: Float[Tensor, "B C L"],
    generator: torch.Generator,
    mask: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B C L"]:
    """Rotate each series by its own random number of steps, uniform over its length.

    Args:
        x: a batch of series.
        generator: the source of the shifts; it may live on another device than ``x``.
        mask: True at real steps; by default all are. Values move from real step to real step, so
            the mask still holds for the result, and what it hides stays where it is.

    Returns:
        A new tensor of the shape and dtype of ``x``.
    """
    rank, count = _ranks(x, mask)
    shift = (_uniform(len(x), generator, x.device) * count).long()
    return _rearranged(x, mask, (rank - shift) % count.clamp(min=1))


def amplitude(
    x: Float[Tensor, "B C L"], generator: torch.Generator, low: float = 0.8, high: float = 1.2
) -> Float[Tensor, "B C L"]:
    """Multiply each series, all its channels alike, by its own factor, uniform in [low, high).

    Args:
        x: a batch of series.
        generator: the source of the factors; it may live on another device than ``x``.
        low: smallest factor.
        high: largest factor.

    Returns:
        A new tensor of the shape and dtype of ``x``.
    """
    factor = low + (high - low) * _uniform(len(x), generator, x.device)
    return x * factor[:, :, None].to(x.dtype)


def coloured_noise(
    x: Float[Tensor, "B C L"],
    generator: torch.Generator,
    level: float,
    mask: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B C L"]:
    """Add noise of a random colour to a fifth of the series, as a worse recording would.

    Half of the time it is white; else it fills a band with a Gaussian profile, its centre uniform
    below a quarter of the Nyquist frequency, its width from 1 % to 26 % of it. Its standard
    deviation is uniform up to ``level`` times the series' own, channel by channel, and the sum is
    scaled about the mean so that the series' deviation stays as it was.

    Args:
        x: a batch of series.
        generator: the source of the noise; it may live on another device than ``x``.
        level: largest standard deviation of the noise, in those of the series.
        mask: True at real steps, by default all; the others get no noise.

    Returns:
        A new tensor of the shape and dtype of ``x``.
    """
    real = torch.ones_like(x[:, :1]) if mask is None else mask[:, None].to(x.dtype)
    count = real.sum(-1, keepdim=True).clamp(min=1)
    mean = (x * real).sum(-1, keepdim=True) / count
    deviation = (((x - mean) * real).square().sum(-1, keepdim=True) / count).sqrt()
    white = torch.randn(x.shape, generator=generator, device=generator.device).to(x)
    spectrum = torch.fft.rfft(white)
    frequency = torch.linspace(0, 1, spectrum.shape[-1], device=x.device)
    centre = 0.25 * _uniform(len(x), generator, x.device)[:, :, None]
    width = 0.01 + 0.25 * _uniform(len(x), generator, x.device)[:, :, None]
    profile = torch.exp(-0.5 * ((frequency - centre) / width).square()).to(x.dtype)
    is_white = _uniform(len(x), generator, x.device)[:, :, None] < WHITE
    profile = torch.where(is_white, torch.ones_like(profile), profile)
    noise = torch.fft.irfft(spectrum * profile, n=x.shape[-1])
    noise = noise / noise.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)
    chance = _uniform(len(x), generator, x.device)[:, :, None]
    share = (1 - chance / NOISY).clamp(min=0).to(x.dtype) * level
    noisy = mean + (x - mean + share * deviation * noise) / (1 + share.square()).sqrt()
    return torch.where((real > 0) & (share > 0), noisy, x)


def dither(
    values: Float64[np.ndarray, "*shape"], generator: np.random.Generator, scale: float = 0.01
) -> Float64[np.ndarray, "*shape"]:
    """Add independent normal noise of standard deviation ``scale``, in the unit of the values."""
    dithered: Float64[np.ndarray, "*shape"] = values + generator.normal(0.0, scale, values.shape)
    return dithered


def dither_pair(
    train: Collection, test: Collection, scale: float = 0.01, seed: int = 0
) -> tuple[Collection, Collection]:
    """Dither both splits from one generator, the training split first.

    Args:
        train: the training split.
        test: the test split.
        scale: standard deviation of the noise, in the unit of the values.
        seed: seed of ``numpy.random.default_rng``.

    Returns:
        Both splits with new values; masked steps stay 0.
    """
    generator = np.random.default_rng(seed)
    train, test = (
        replace(split, values=dither(split.values, generator, scale) * split.mask[:, None])
        for split in (train, test)
    )
    return train, test


def _ranks(
    x: Tensor, mask: Bool[Tensor, "B L"] | None
) -> tuple[Int[Tensor, "#B L"], Int[Tensor, "#B 1"]]:
    """Return the rank of each step among the real ones, and how many there are."""
    if mask is None:
        steps = torch.arange(x.shape[-1], device=x.device)[None]
        return steps, torch.full_like(steps[:, :1], x.shape[-1])
    return mask.cumsum(dim=1) - 1, mask.sum(dim=1, keepdim=True)


def _rearranged(
    x: Tensor, mask: Bool[Tensor, "B L"] | None, rank: Int[Tensor, "B L"]
) -> Float[Tensor, "B C L"]:
    """Give each real step the value of the real step with this rank; leave the others."""
    source = rank.expand(len(x), -1)
    if mask is not None:
        real_first = mask.long().argsort(dim=1, descending=True, stable=True)
        steps = torch.arange(x.shape[-1], device=x.device)
        source = torch.where(mask, real_first.gather(1, rank), steps)
    return x.gather(-1, source[:, None].expand_as(x))


def _uniform(n: int, generator: torch.Generator, device: torch.device) -> Float[Tensor, "n 1"]:
    """Draw n numbers from [0, 1) where the generator lives and bring them to ``device``."""
    return torch.rand(n, 1, generator=generator, device=generator.device).to(device)
