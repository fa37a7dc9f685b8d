"""Can the probabilities be believed? Confidence against accuracy (Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from lagformer.scores import wilson_interval

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Predictions of about equal confidence."""

    confidence: float
    """Mean probability of the predicted label."""
    accuracy: float
    interval: tuple[float, float]
    """Wilson's 95 % interval of the accuracy."""
    series: int


@dataclass(frozen=True)
class Reliability:
    """Bins in order of confidence, and what they add up to."""

    bins: list[Bin]
    error: float
    """Expected calibration error: mean over the series of |accuracy − confidence| of their bin."""
    confidence: float
    accuracy: float


def reliability(confidence: Float64[ndarray, " n"], right: Bool[ndarray, " n"]) -> Reliability:
    """Sort predictions by confidence into up to 10 bins of as many series each and compare.

    Equal numbers make every bin's accuracy about equally well known. `confidence` is the
    probability of the predicted label, `right` whether it was the true one; at least one series.
    """
    order = np.argsort(confidence, kind="stable")
    bins = []
    for part in np.array_split(order, min(BINS, len(order))):
        accuracy = float(right[part].mean())
        interval = wilson_interval(accuracy, len(part))
        bins.append(Bin(float(confidence[part].mean()), accuracy, interval, len(part)))
    gaps = sum(b.series * abs(b.accuracy - b.confidence) for b in bins)
    return Reliability(bins, gaps / len(order), float(confidence.mean()), float(right.mean()))
