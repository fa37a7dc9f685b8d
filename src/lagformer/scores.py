"""Scores of predicted labels, with the uncertainty a test set of that size leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, f1_score

_Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Score:
    """How well labels were predicted; intervals cover 95 %."""

    macro_f1: float
    macro_f1_interval: tuple[float, float]
    accuracy: float
    accuracy_interval: tuple[float, float]
    confusion: list[list[int]]
    """Rows: true class, columns: predicted class, in the order of `classes`."""
    classes: list[Any]


def score(true: ArrayLike, predicted: ArrayLike) -> Score:
    """Score predicted labels against the true ones.

    The interval of the accuracy is Wilson's; that of macro F1 is the 2.5 to 97.5 % range over 2000
    bootstrap resamples of the series, from a fixed seed. Raises ValueError for unequal lengths.
    """
    true, predicted = np.asarray(true), np.asarray(predicted)
    if true.shape != predicted.shape:
        raise ValueError(f"{len(true)} true labels but {len(predicted)} predicted ones")
    classes = np.unique(np.concatenate([true, predicted]))
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (classes.searchsorted(true), classes.searchsorted(predicted)), 1)
    accuracy = float(accuracy_score(true, predicted))
    return Score(
        macro_f1=float(f1_score(true, predicted, average="macro")),
        macro_f1_interval=_bootstrap_interval(confusion),
        accuracy=accuracy,
        accuracy_interval=wilson_interval(accuracy, len(true)),
        confusion=confusion.tolist(),
        classes=classes.tolist(),
    )


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share observed in n trials."""
    centre = share + _Z95**2 / (2 * n)
    half = _Z95 * np.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n**2))
    scale = 1 + _Z95**2 / n
    low, high = np.clip([(centre - half) / scale, (centre + half) / scale], 0, 1)
    return float(low), float(high)


def mark(macro_f1: float, best: float) -> float:
    """Return the mark 100·(X − 0.5)/(X_best − 0.5). ValueError unless 0.5 < best ≤ 1."""
    if not 0.5 < best <= 1:
        raise ValueError(f"the best macro F1 must lie in (0.5, 1], got {best!r}")
    return 100 * (macro_f1 - 0.5) / (best - 0.5)


def _bootstrap_interval(confusion: NDArray[np.int64]) -> tuple[float, float]:
    """Resampling series with replacement is a multinomial draw of the confusion counts."""
    n = confusion.sum()
    draws = np.random.default_rng(0).multinomial(n, confusion.ravel() / n, size=2000)
    low, high = np.quantile(_macro_f1(draws.reshape(-1, *confusion.shape)), [0.025, 0.975])
    return float(low), float(high)


def _macro_f1(confusion: Float[np.ndarray, "n classes classes"]) -> Float[np.ndarray, " n"]:
    """Mean over the classes that occur of 2·right / (true + predicted)."""
    right = np.diagonal(confusion, axis1=1, axis2=2)
    total = confusion.sum(axis=1) + confusion.sum(axis=2)
    f1 = 2 * right / np.maximum(total, 1)
    mean: Float[np.ndarray, " n"] = f1.sum(axis=1) / (total > 0).sum(axis=1)
    return mean
