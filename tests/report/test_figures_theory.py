"""The numbers behind the figures of the theory, and the figures."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lagformer.attention import RelativeLinearAttention, reference
from lagformer.report import figures_theory as theory


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=generator(seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------------ rank


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exponential_has_full_rank_and_maps_have_at_most_l(seed: int) -> None:
    points, sizes = normal(96, 8, seed=seed), (1, 5, 8, 9, 44, 46, 96)
    kernels = {kernel.name: kernel for kernel in theory.gram_ranks(points, sizes)}
    assert {name: k.num_features for name, k in kernels.items()} == {
        "exp(xᵀy/√d)": None,
        "taylor2": 1 + 8 + 8 * 9 // 2,
        "favor+": 16,
        "elu+1": 8,
    }
    for kernel in kernels.values():
        l = kernel.num_features or math.inf
        assert kernel.ranks == [min(n, l) for n in sizes], kernel.name


def test_ranks_agree_with_numpy_on_the_oracles_features() -> None:
    points, sizes = normal(60, 6), (3, 20, 40, 60)
    kernels = {kernel.name: kernel for kernel in theory.gram_ranks(points, sizes)}
    for name, phi in (("elu+1", reference.elu_plus_one), ("taylor2", reference.taylor2_full)):
        features = phi(points).numpy()
        assert kernels[name].ranks == [int(np.linalg.matrix_rank(features[:n])) for n in sizes]
    gram = np.exp(points.numpy() @ points.numpy().T / math.sqrt(6))
    # Full rank shown another way: the Cholesky factor exists and is far from singular.
    assert np.linalg.cond(np.linalg.cholesky(gram)) < 1e5
    assert kernels["exp(xᵀy/√d)"].ranks == list(sizes)


def test_a_point_given_twice_costs_a_rank() -> None:
    points = normal(20, 8)
    points[7] = points[3]
    assert theory.gram_ranks(points, (20,))[0].ranks == [19]


def test_eigenvalues_are_those_of_the_largest_set() -> None:
    points = normal(30, 8)
    kernel = theory.gram_ranks(points, (10, 30))[0]
    gram = np.exp(points.numpy() @ points.numpy().T / math.sqrt(8))
    expected = np.sort(np.linalg.eigvalsh(gram))[::-1]
    # A symmetric solver's error is a small multiple of the largest eigenvalue's rounding.
    np.testing.assert_allclose(kernel.eigenvalues, expected / expected[0], atol=30 * 2**-52)


# ---------------------------------------------------------------------------------------- Taylor


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.integers(1, 12), st.integers(0, 99))
def test_taylor_map_is_the_truncated_series(scores: list[float], dim: int, seed: int) -> None:
    x = torch.tensor(scores, dtype=torch.float64)
    # With dim = 1 a tiny q needs a huge k: the score is then known to |q||k| roundings only.
    q, k = theory.pairs_with_scores(x, dim, generator(seed))
    rounding = 20 * 2**-52 * (1 + (q.abs() * k.abs()).sum(1)).square()
    assert ((q * k).sum(1) / math.sqrt(dim) - x).abs().le(rounding).all()
    weights = theory.taylor_weights(x, dim, generator(seed))
    assert (weights - (1 + x + x * x / 2)).abs().le(10 * rounding).all()
    assert weights.ge(0.5 - 10 * rounding).all()


def test_worst_taylor_error_is_the_largest_on_a_grid() -> None:
    for bound in (0.01, 0.3, 1.0, 2.5, 4.0):
        x = np.linspace(-bound, bound, 20_001)
        largest = np.abs((1 + x + x**2 / 2) / np.exp(x) - 1).max()
        found = theory.worst_taylor_error(np.array(bound))
        # Both subtract 1 from a number near it.
        assert found == pytest.approx(largest, rel=1e-12, abs=4 * 2**-52)
    assert theory.worst_taylor_error(np.array(1.0)) == pytest.approx(math.e / 2 - 1, rel=1e-14)


# -------------------------------------------------------------------------------------- variance


@pytest.mark.parametrize("tau2", [0.0, 1 / 3, 1.0])
def test_score_variance_follows_the_theory(tau2: float) -> None:
    found = theory.score_variance(
        tau2, embed_dim=32, head_dim=8, draws=10_000, generator=generator()
    )
    expected = 1 + 3 * tau2  # (σ² + τ²)/σ² with σ² = 1/3
    assert found.plain_error < 0.04 * expected
    assert abs(found.plain - expected) < 5 * found.plain_error
    assert abs(found.scaled - expected / 2) < 5 * found.scaled_error
    # Scaling by 1/√2 halves the variance of the same draws: up to the rounding of their sum.
    assert found.scaled == pytest.approx(found.plain / 2, rel=1e-12)


def test_projections_and_lags_start_as_the_figure_assumes() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weight = nn.Linear(32, 4096, bias=False).weight.detach()
        lags = RelativeLinearAttention(8, 4, 16, max_lag=500).lags.detach()
    bound = 1 / math.sqrt(32)
    assert 0.999 * bound < weight.abs().max() <= bound
    # A uniform variable's square has relative deviation √(4/5), a normal one's √2.
    n = weight.numel()
    assert float(weight.square().mean()) == pytest.approx(1 / 96, rel=5 * math.sqrt(0.8 / n))
    assert float(lags.square().mean()) == pytest.approx(1 / 3, rel=5 * math.sqrt(2 / lags.numel()))


# --------------------------------------------------------------------------------------- figures


def test_elu_figure_shows_the_map_and_its_slope(check_readable) -> None:
    figure = theory.elu_figure()
    check_readable(figure)
    values, slopes = figure.axes
    _, phi, elu, _ = (line.get_xydata() for line in values.lines)
    x = phi[:, 0]
    close = functools.partial(np.testing.assert_allclose, rtol=2**-50, atol=2**-52)
    close(phi[:, 1], np.where(x > 0, 1 + x, np.exp(np.minimum(x, 0))))
    close(elu[:, 1], np.where(x > 0, x, np.expm1(np.minimum(x, 0))))
    slope = slopes.lines[0].get_ydata()
    close(slope, np.where(x > 0, 1, np.exp(np.minimum(x, 0))))


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("draw", [theory.rank_figure, theory.taylor_figure, theory.variance_figure])
def test_figures_are_readable(draw, seed: int, check_readable) -> None:
    before = torch.random.get_rng_state()
    check_readable(draw(seed))
    assert torch.equal(torch.random.get_rng_state(), before)
