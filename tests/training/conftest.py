"""A learnable problem of a few dozen short series, and a network of a few hundred parameters."""

import pytest
import torch

from lagformer import Lagformer, LagformerConfig
from lagformer.training.loop import Examples, seeded

CONFIG = LagformerConfig(
    series_length=16,
    in_channels=1,
    num_classes=2,
    patch_length=4,
    embed_dim=8,
    num_heads=2,
    head_dim=4,
    num_blocks=1,
    mlp_dim=16,
    dropout=0.1,
)


def examples(n: int, seed: int = 0) -> Examples:
    """Slow and fast sines with noise, classes 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 2
    phase = 6.28 * torch.rand(n, 1, generator=generator)
    values = torch.sin(phase + (0.4 + 0.8 * targets[:, None]) * torch.arange(16))
    values = values + 0.1 * torch.randn(n, 16, generator=generator)
    return Examples(values[:, None], targets)


@pytest.fixture
def model() -> Lagformer:
    with seeded(0):
        return Lagformer(CONFIG)
