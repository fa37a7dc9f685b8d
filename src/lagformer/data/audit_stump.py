"""A decision stump, "the statistic is at most t", cross-validated with an honest interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray

FOLDS = 5
FAMILY_ERROR = 0.05
# Fewer series than this on either side of a stump prove nothing.
MIN_SERIES = 10


@dataclass(frozen=True)
class Target:
    """Who belongs to which class and fold, and how sure an interval must be."""

    labels: tuple[Any, ...]
    """The K classes large enough to judge; of two complementary ones only the first."""
    member: Bool[np.ndarray, "n K"]
    fold: Int64[np.ndarray, " n"]
    z: float
    """Normal quantile of the two-sided family-wise level."""


@dataclass(frozen=True)
class Stump:
    """The best threshold for one class against the rest."""

    channel: int
    class_index: int
    threshold: float
    below: bool
    """Whether the class lies at or below the threshold."""
    score: float
    """Cross-validated balanced accuracy; 0.5 is chance."""
    low: float
    high: float


def make_target(labels: NDArray[Any], statistics: int, seed: int) -> Target | None:
    """Deal out stratified folds; None if no class can be told from the rest at all.

    Args:
        labels: (n,) class of each series.
        statistics: numbers per series that will be tried, for the Bonferroni correction.
        seed: decides the folds.
    """
    classes, index = np.unique(labels, return_inverse=True)
    sizes = np.bincount(index)
    judged = np.flatnonzero((sizes >= MIN_SERIES) & (len(index) - sizes >= MIN_SERIES))
    if len(classes) == 2:
        judged = judged[:1]
    if not len(judged):
        return None
    rng = np.random.default_rng(seed)
    fold = np.empty(len(index), dtype=np.int64)
    for k in range(len(classes)):
        rows = rng.permutation(np.flatnonzero(index == k))
        fold[rows] = np.arange(len(rows)) % FOLDS
    z = NormalDist().inv_cdf(1 - FAMILY_ERROR / (2 * statistics * len(judged)))
    return Target(tuple(classes[judged].tolist()), index[:, None] == judged, fold, z)


def best_stump(features: Float64[np.ndarray, "n C"], target: Target) -> Stump:
    """Return the channel and class whose stump is surest (highest lower bound)."""
    stumps = [
        stump for c in range(features.shape[1]) for stump in _stumps(features[:, c], target, c)
    ]
    return max(stumps, key=lambda s: s.low)


def same_stump(feature: Float64[np.ndarray, " n"], target: Target, stump: Stump) -> Stump:
    """Cross-validate anew for the class of ``stump``, on another reading of its statistic."""
    k = stump.class_index
    one = Target(target.labels[k : k + 1], target.member[:, k : k + 1], target.fold, target.z)
    return _stumps(feature, one, stump.channel)[0]


def _stumps(feature: Float64[np.ndarray, " n"], target: Target, channel: int) -> list[Stump]:
    """Cross-validate one stump per class."""
    predicted = np.empty_like(target.member)
    for fold in range(FOLDS):
        held_out = target.fold == fold
        threshold, below = _fit(feature[~held_out], target.member[~held_out])
        predicted[held_out] = (feature[held_out, None] <= threshold) == below
    threshold, below = _fit(feature, target.member)
    size = target.member.sum(axis=0)
    hits = (predicted & target.member).sum(axis=0)
    rejections = (~predicted & ~target.member).sum(axis=0)
    stumps = []
    for k in range(len(size)):
        recalls = (hits[k], size[k]), (rejections[k], len(feature) - size[k])
        score, low, high = _balanced_accuracy(recalls, target.z)
        stumps.append(Stump(channel, k, float(threshold[k]), bool(below[k]), score, low, high))
    return stumps


def _fit(
    feature: Float64[np.ndarray, " n"], member: Bool[np.ndarray, "n K"]
) -> tuple[Float64[np.ndarray, " K"], Bool[np.ndarray, " K"]]:
    """Find the threshold of the highest balanced accuracy for each class, and the class's side."""
    order = np.argsort(feature, kind="stable")
    value = feature[order]
    inside = np.cumsum(member[order], axis=0)
    below = np.arange(1, len(value) + 1)[:, None]
    size = inside[-1]
    # Share of the class minus share of the rest at or below each value: Youden's index.
    gain = inside / size - (below - inside) / (len(value) - size)
    gain[:-1][value[1:] == value[:-1]] = 0
    cut = np.abs(gain).argmax(axis=0)
    threshold = (value[cut] + value[np.minimum(cut + 1, len(value) - 1)]) / 2
    return threshold, gain[cut, np.arange(len(cut))] > 0


def _balanced_accuracy(
    recalls: tuple[tuple[int, int], tuple[int, int]], z: float
) -> tuple[float, float, float]:
    """Mean of two recalls, (hits, size) each, with Newcombe's interval (Stat. Med. 17, 1998)."""
    score = below = above = 0.0
    for hits, size in recalls:
        p = hits / size
        low, high = _wilson(p, size, z)
        score += p / 2
        below += (p - low) ** 2
        above += (high - p) ** 2
    return score, score - sqrt(below) / 2, score + sqrt(above) / 2


def _wilson(p: float, n: int, z: float) -> tuple[float, float]:
    """Wilson's score interval of a share p seen in n draws (JASA 22, 1927)."""
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return centre - half, centre + half
