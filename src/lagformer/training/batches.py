"""What happens to a batch before the network sees it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagformer.data import amplitude, circular_shift, coloured_noise
from lagformer.training.recipe import Recipe


def augmented(
    x: Float[Tensor, "B C L"],
    mask: Bool[Tensor, "B L"] | None,
    recipe: Recipe,
    generator: torch.Generator,
) -> Float[Tensor, "B C L"]:
    """Return the series as the recipe varies them, each in its own way."""
    if recipe.shift:
        x = circular_shift(x, generator, mask)
    if recipe.amplitude is not None:
        x = amplitude(x, generator, *recipe.amplitude)
    if recipe.coloured_noise:
        x = coloured_noise(x, generator, recipe.coloured_noise, mask)
    return x


def mixed_up(
    x: Float[Tensor, "B C L"],
    mask: Bool[Tensor, "B L"] | None,
    targets: Float[Tensor, "B classes"],
    weight: Float[Tensor, " B"],
    alpha: float,
    generator: torch.Generator,
) -> tuple[
    Float[Tensor, "B C L"],
    Bool[Tensor, "B L"] | None,
    Float[Tensor, "B classes"],
    Float[Tensor, " B"],
]:
    """Blend a batch with a permutation of itself in a proportion from Beta(alpha, alpha).

    A step is real if it is in either series. Mixup (Zhang et al. 2018, section 2).
    """
    number = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    share = float(np.random.default_rng(int(number)).beta(alpha, alpha))
    other = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    return (
        share * x + (1 - share) * x[other],
        None if mask is None else mask | mask[other],
        share * targets + (1 - share) * targets[other],
        share * weight + (1 - share) * weight[other],
    )
