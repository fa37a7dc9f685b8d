"""The theory as pictures: feature maps, ranks, the Taylor map and the scale of the lag vectors.

Each figure is drawn by one function from numbers that another computes; the numbers are tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from lagformer.attention import feature_map
from lagformer.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    legend_below,
    new_figure,
)

# ---------------------------------------------------------------------------- φ(x) = 1 + ELU(x)


def elu_figure() -> Figure:
    """ELU(x), φ(x) = 1 + ELU(x) and φ'(x): positive, slope 1 on both sides of 0, linear growth."""
    figure, (left, right) = new_figure(
        "The feature map φ(x) = 1 + ELU(x)",
        "φ is strictly positive: eˣ below 0, 1 + x above. Its slope is 1 on both sides of 0 and "
        "never 0, and it grows no faster than x.",
        columns=2,
    )
    x = torch.linspace(-4, 4, 801, dtype=torch.float64, requires_grad=True)
    phi = feature_map("elu+1", 1)(x.unsqueeze(1)).squeeze(1)
    (slope,) = torch.autograd.grad(phi.sum(), x)
    at, value = x.detach().numpy(), phi.detach().numpy()
    left.axhline(0, color=GREY, linewidth=0.8)
    left.plot(at, value, color=BLUE, linewidth=2)
    left.plot(at, value - 1, color=RED, linestyle="--", linewidth=2)
    left.plot(0, 1, "o", color=BLUE)
    left.annotate("φ(x) = 1 + ELU(x)", (1.5, 2.9), ha="right", color=BLUE)
    left.annotate("ELU(x)", (1.7, 0.9), color=RED)
    left.set(title="Values", xlabel="x", ylabel="value")
    right.plot(at, slope.numpy(), color=BLUE, linewidth=2)
    right.plot(0, 1, "o", color=BLUE)
    right.annotate("φ'(0) = 1 from both sides", (0, 1.05), ha="center", color=BLUE)
    right.annotate("φ'(x) = eˣ", (-1.3, 0.42), ha="right", color=BLUE)
    right.annotate("φ'(x) = 1", (2.3, 0.9), ha="center", color=BLUE)
    right.set(title="Slope", xlabel="x", ylabel="dφ/dx", ylim=(0, 1.25))
    return figure


# ----------------------------------------------------------------- why no finite map is softmax


@dataclass(frozen=True)
class Kernel:
    """Gram matrices of growing sets of points, as their ranks and the last one's eigenvalues."""

    name: str
    num_features: int | None
    """l; None for the exponential, which has no finite one."""
    ranks: list[int]
    eigenvalues: NDArray[np.float64]
    """Of the largest set, falling, divided by the first."""


def rounding(T: int) -> float:
    """Eigenvalues of a T × T matrix below this fraction of the largest may be rounding alone."""
    return T * float(np.finfo(np.float64).eps)


def gram_ranks(points: Float[Tensor, "T d"], sizes: Sequence[int]) -> list[Kernel]:
    """Rank of exp(x_iᵀx_j/√d) and of φ(X)φ(X)ᵀ for the first n points, for each n of `sizes`.

    An eigenvalue counts if it exceeds what rounding can do to a zero one; float64 points.
    """
    d = points.shape[1]
    exponential = (points @ points.T / math.sqrt(d)).exp()
    grams: dict[str, tuple[int | None, Tensor]] = {"exp(xᵀy/√d)": (None, exponential)}
    for name in ("taylor2", "favor+", "elu+1"):
        phi = feature_map(name, d)
        grams[name] = (phi.num_features, phi(points) @ phi(points).T)
    kernels = []
    for name, (num_features, gram) in grams.items():
        ranks = []
        for n in sizes:
            eigenvalues = torch.linalg.eigvalsh(gram[:n, :n]).flip(0).numpy()
            eigenvalues = eigenvalues / eigenvalues[0]
            ranks.append(int((eigenvalues > rounding(n)).sum()))
        kernels.append(Kernel(name, num_features, ranks, eigenvalues))
    return kernels


def rank_figure(seed: int) -> Figure:
    """The exponential kernel's Gram matrix has full rank; that of l features has at most l."""
    d, sizes = 8, range(1, 129)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(sizes[-1], d, generator=generator, dtype=torch.float64)
    kernels = gram_ranks(points, sizes)
    margin = math.floor(math.log10(kernels[0].eigenvalues[-1] / rounding(sizes[-1])))
    figure, (left, right) = new_figure(
        "No finite feature map is the exponential kernel",
        f"Points: standard normal, d = {d}, float64. Eigenvalues below the dotted line "
        f"(T · 2⁻⁵² of the largest) may be rounding and are not counted. The exponential's "
        f"smallest lies $10^{{{margin}}}$ times above it, so its full rank is certain here. Other "
        "points or more of them can push it below the line, though never to 0.",
        columns=2,
        height=4.9,
    )
    styles = zip((BLACK, BLUE, GREEN, RED), ("-", "--", "-.", ":"), kernels, strict=True)
    for color, dash, kernel in styles:
        label = f"{kernel.name}, l = {kernel.num_features or '∞'}"
        left.plot(sizes, kernel.ranks, color=color, linestyle=dash, linewidth=2)
        va = "top" if kernel is kernels[-1] else "bottom"
        offset = -2 if kernel is kernels[-1] else 2
        at = (sizes[-1] - 3, kernel.ranks[-1] + offset)
        left.annotate(label, at, ha="right", va=va, color=color)
        shown = np.where(kernel.eigenvalues > 1e-18, kernel.eigenvalues, np.nan)
        index = np.arange(1, len(shown) + 1)
        right.semilogy(index, shown, color=color, linestyle=dash, lw=2, label=kernel.name)
    right.axhline(rounding(sizes[-1]), color=GREY, linestyle=":", linewidth=1)
    left.set(title="Rank", xlabel="number of points T", ylabel="rank of the Gram matrix")
    left.set_ylim(top=1.15 * sizes[-1])
    right.set(title=f"Eigenvalues at T = {sizes[-1]}", xlabel="index", ylim=(1e-18, 3))
    right.set_ylabel("eigenvalue / largest")
    legend_below(right, ncols=2)
    return figure


# ------------------------------------------------------------------- the truncated Taylor map


def pairs_with_scores(
    scores: Float[Tensor, " n"], dim: int, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Random q, k with qᵀk/√d equal to the given scores."""
    q, k = (torch.randn(len(scores), dim, generator=generator, dtype=scores.dtype) for _ in "qk")
    wanted = scores * math.sqrt(dim) - (q * k).sum(1)
    return q, k + q * (wanted / q.square().sum(1)).unsqueeze(1)


def taylor_weights(
    scores: Float[Tensor, " n"], dim: int, generator: torch.Generator
) -> Float[Tensor, " n"]:
    """φ(q)ᵀφ(k) of the `taylor2` map for random pairs with the given scores qᵀk/√d."""
    phi = feature_map("taylor2", dim)
    q, k = pairs_with_scores(scores, dim, generator)
    weights: Tensor = (phi(q) * phi(k)).sum(1)
    return weights


def worst_taylor_error(bound: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest |1 + x + x²/2 - eˣ| / eˣ over |x| ≤ bound: it is reached at -bound."""
    error: NDArray[np.float64] = (1 - bound + bound**2 / 2) * np.exp(bound) - 1
    return error


def taylor_figure(seed: int) -> Figure:
    """exp(x) beside 1 + x + x²/2, and the relative error of the weights against their range."""
    dim, generator = 8, torch.Generator().manual_seed(seed)
    at_one = 100 * float(worst_taylor_error(np.array(1.0)))
    figure, (left, right) = new_figure(
        "The Taylor map: exp(x) ≈ 1 + x + x²/2",
        "Circles: φ(q)ᵀφ(k) of the map taylor2 for random q and k with the score x = qᵀk/√d, "
        f"d = {dim}. The weights are ((x + 1)² + 1)/2 ≥ 1/2: the normaliser never vanishes. For "
        f"|x| up to 1 a weight is off by at most {at_one:.0f} % of exp(x).",
        columns=2,
        height=4.7,
    )
    x = torch.linspace(-3, 3, 25, dtype=torch.float64)
    fine = np.linspace(-3, 3, 601)
    left.semilogy(fine, np.exp(fine), color=BLACK, linestyle="--", lw=2, label="exp(x)")
    series = 1 + fine + fine**2 / 2
    left.plot(fine, series, color=BLUE, linewidth=2, label="1 + x + x²/2")
    weights = taylor_weights(x, dim, generator).numpy()
    left.plot(x.numpy(), weights, "o", color=BLUE, mfc="white", label="φ(q)ᵀφ(k)")
    left.annotate(
        "smallest: 1/2 at x = -1",
        (-1, 0.5),
        (-1, 8),
        ha="center",
        arrowprops={"arrowstyle": "->", "color": GREY},
    )
    left.set(title="Weight of a pair", xlabel="score x = qᵀk/√d", ylabel="weight φ(q)ᵀφ(k)")
    bounds = np.geomspace(0.05, 4, 100)
    right.loglog(
        bounds, worst_taylor_error(bounds), color=BLUE, lw=2, label="(1 - ρ + ρ²/2) exp(ρ) - 1"
    )
    right.loglog(bounds, bounds**3 / 6, color=GREY, linestyle=":", lw=1.5, label="ρ³/6")
    measured = []
    for bound in bounds[::11]:
        scores = torch.linspace(-bound, bound, 101, dtype=torch.float64)
        weights = taylor_weights(scores, dim, generator).numpy()
        measured.append(np.abs(weights / np.exp(scores.numpy()) - 1).max())
    right.loglog(
        bounds[::11], measured, "o", color=BLUE, mfc="white", label="measured on φ(q)ᵀφ(k)"
    )
    right.set(title="Largest relative error, |x| ≤ ρ", xlabel="range ρ of the scores")
    right.set_ylabel("|φ(q)ᵀφ(k) - exp(x)| / exp(x)")
    for panel in (left, right):
        legend_below(panel)
    return figure


# ------------------------------------------------------------------ initial scale of the lags

KEY_VARIANCE = 1 / 3  # σ²: of nn.Linear's outputs for unit-variance inputs


@dataclass(frozen=True)
class ScoreVariance:
    """Variances over those of qᵀk alone, for one τ², and their standard errors."""

    plain: float
    plain_error: float
    scaled: float
    scaled_error: float


def score_variance(
    tau2: float, *, embed_dim: int, head_dim: int, draws: int, generator: torch.Generator
) -> ScoreVariance:
    """Variance of qᵀ(k + r) and of qᵀ(k + r)/√2, r ~ N(0, τ²), over independent draws.

    A draw is two unit-variance tokens, two projections as nn.Linear starts them, and one r.
    """

    def projection() -> Tensor:
        bound = 1 / math.sqrt(embed_dim)
        weight = torch.empty(draws, head_dim, embed_dim, dtype=torch.float64)
        weight.uniform_(-bound, bound, generator=generator)
        token = torch.randn(draws, embed_dim, 1, dtype=torch.float64, generator=generator)
        return (weight @ token).squeeze(2)

    q, k = projection(), projection()
    r = math.sqrt(tau2) * torch.randn(q.shape, dtype=torch.float64, generator=generator)
    of_content = head_dim * KEY_VARIANCE**2  # Var(qᵀk)
    # The mean is 0 by symmetry, so the variance is the mean square.
    squares = (q * (k + r)).sum(1).square() / of_content
    mean, error = float(squares.mean()), float(squares.std()) / math.sqrt(draws)
    halves = (q * (k + r) / math.sqrt(2)).sum(1).square() / of_content
    return ScoreVariance(mean, error, float(halves.mean()), float(halves.std()) / math.sqrt(draws))


def variance_figure(seed: int) -> Figure:
    """Variance of the score against τ²: both terms are equal, and the total doubled, at τ² = σ²."""
    embed_dim, head_dim, draws = 32, 8, 10_000
    generator = torch.Generator().manual_seed(seed)
    figure, (panel,) = new_figure(
        "Initial scale of the lag vectors: score qᵀk + qᵀr",
        f"Circles: {draws:,} draws each of tokens, projections (nn.Linear's default, "
        f"D = {embed_dim}, d = {head_dim}) and r; bars are ± 2 standard errors. Lines: theory. "
        "With τ² = σ² = 1/3 content and lag weigh alike and the total doubles; "
        "qᵀ(k + r)/√2 keeps it.",
        height=4.6,
    )
    tau2 = np.linspace(0, 1, 101)
    ratio = tau2 / KEY_VARIANCE
    panel.plot(tau2, np.ones_like(tau2), color=GREY, linestyle=":", lw=1.5, label="qᵀk alone")
    panel.plot(tau2, ratio, color=GREY, linestyle="--", lw=1.5, label="qᵀr alone")
    panel.plot(tau2, 1 + ratio, color=BLUE, lw=2, label="qᵀ(k + r)")
    panel.plot(tau2, (1 + ratio) / 2, color=RED, linestyle="-.", lw=2, label="qᵀ(k + r)/√2")
    for value in np.arange(7) / 6:
        found = score_variance(
            float(value), embed_dim=embed_dim, head_dim=head_dim, draws=draws, generator=generator
        )
        for mean, error, color in (
            (found.plain, found.plain_error, BLUE),
            (found.scaled, found.scaled_error, RED),
        ):
            panel.errorbar(value, mean, 2 * error, fmt="o", color=color, mfc="white", capsize=3)
    panel.axvline(KEY_VARIANCE, color=ORANGE, lw=1)
    panel.annotate(" τ² = σ²: equal terms", (KEY_VARIANCE, 3.7), color=BLACK)
    panel.set(xlabel="variance τ² of the components of r", ylabel="score variance / Var(qᵀk)")
    panel.set_title("Variance at initialisation")
    legend_below(panel, ncols=4)
    return figure
