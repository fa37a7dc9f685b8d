"""Mixup blends series, labels, weights and masks alike."""

import torch

from lagformer.training.batches import augmented, mixed_up
from lagformer.training.recipe import Recipe


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mixup_blends_all_parts_in_one_proportion() -> None:
    """Series i holds i everywhere, its target is one-hot i, its weight is i."""
    n, shares = 6, []
    for seed in range(300):
        x = torch.arange(float(n))[:, None, None].expand(n, 2, 4)
        mask = torch.ones(n, 4, dtype=torch.bool)
        mixed, _, targets, weight = mixed_up(
            x, mask, torch.eye(n), torch.arange(float(n)), 0.4, generator(seed)
        )
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(n))
        value = targets @ torch.arange(float(n))
        torch.testing.assert_close(mixed, value[:, None, None].expand(n, 2, 4))
        torch.testing.assert_close(weight, value)
        shares += [t.max().item() for t in targets if (t > 0).sum() == 2][:1]
    # max(s, 1 - s) of s from Beta(0.4, 0.4): more than half lie above 0.85.
    assert 0.5 < torch.tensor(shares).gt(0.85).float().mean() < 0.75


def test_a_step_is_real_if_it_is_in_either_series() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    x, target, weight = torch.randn(2, 1, 4), torch.eye(2), torch.ones(2)
    for seed in range(20):
        mixed, real, targets, _ = mixed_up(x, mask, target, weight, 0.4, generator(seed))
        if (targets > 0).all():
            assert real.tolist() == [[True, True, False, False]] * 2
            assert (mixed != x).all()
            return
    raise AssertionError("no permutation in 20")


def test_nothing_is_changed_that_the_recipe_leaves_alone() -> None:
    x = torch.randn(4, 1, 8)
    assert augmented(x, None, Recipe(shift=False, amplitude=None), generator()) is x
