"""Augmentations for the training loop, and the dither that hides a digitisation.

Every function draws from the generator it is given and leaves its input and the global state alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lagformer.data.collection import Collection


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
    if mask is None:
        mask = torch.ones(len(x), x.shape[-1], dtype=torch.bool, device=x.device)
    count = mask.sum(dim=1, keepdim=True)
    shift = (_uniform(len(x), generator, x.device) * count).long()
    rank = mask.cumsum(dim=1) - 1
    real_first = mask.long().argsort(dim=1, descending=True, stable=True)
    rotated = real_first.gather(1, (rank - shift) % count.clamp(min=1))
    source = torch.where(mask, rotated, torch.arange(x.shape[-1], device=x.device))
    return x.gather(-1, source[:, None].expand_as(x))


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


def _uniform(n: int, generator: torch.Generator, device: torch.device) -> Float[Tensor, "n 1"]:
    """Draw n numbers from [0, 1) where the generator lives and bring them to ``device``."""
    return torch.rand(n, 1, generator=generator, device=generator.device).to(device)
