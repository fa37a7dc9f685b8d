"""How the splits are made up: classes, constant series, gaps, and drift from train to test."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
from jaxtyping import Float64

from lagformer.data import audit_statistics as st
from lagformer.data.audit_report import Finding
from lagformer.data.collection import Collection

FAMILY_ERROR = 0.05
# A class with less than this share, and less than a quarter of an even share, is rare.
_RARE = 0.05
# Large splits make any drift significant; one under this distance changes little.
_MIN_DRIFT = 0.2
_SHOWN = 5

_DRIFTING = {
    "distinct_values": st.distinct_values,
    "repeated_values": st.repeated_values,
    "mean": st.mean,
    "standard_deviation": st.standard_deviation,
    "minimum": st.minimum,
    "maximum": st.maximum,
    "roughness": st.roughness,
}


def splits(train: Collection, test: Collection | None) -> list[Finding]:
    """Look at the make-up of each split.

    Scores: the share of the rarest class (``class_balance``, training split), the number of classes
    absent from one split (``class_coverage``), the share of constant series (``constant_series``)
    and of missing steps (``missing_share``) in both splits together, and the largest
    Kolmogorov-Smirnov distance between the splits' statistics (``drift``).
    """
    both = [train] if test is None else [train, test]
    findings = []
    if train.labels is not None:
        findings.append(_class_balance(train))
        if test is not None and test.labels is not None:
            findings.append(_class_coverage(train, test))
    findings += [_constant_series(both), _missing_share(both)]
    if test is not None:
        findings.append(_drift(train, test))
    return findings


def _class_balance(train: Collection) -> Finding:
    """Warn of rare classes and of classes with a single series."""
    classes, sizes = np.unique(np.asarray(train.labels), return_counts=True)
    rare = (sizes / len(train) < min(_RARE, 0.25 / len(classes))) | (sizes == 1)
    share = float(sizes.min() / len(train))
    detail = f"{len(classes)} classes, the rarest with {sizes.min()} of {len(train)} series"
    if not rare.any():
        return Finding("class_balance", "ok", share, detail)
    detail += f"; rare: {_listed(classes[rare].tolist())}"
    cure = "Weight the classes (class_weight='balanced') and read macro F1, not accuracy."
    return Finding("class_balance", "warn", share, detail, cure)


def _class_coverage(train: Collection, test: Collection) -> Finding:
    """Warn of classes that one split lacks."""
    in_train, in_test = (set(np.asarray(s.labels).tolist()) for s in (train, test))
    lonely = sorted(in_train ^ in_test, key=str)
    if not lonely:
        detail = f"all {len(in_train)} classes are in both splits"
        return Finding("class_coverage", "ok", 0.0, detail)
    detail = (
        f"only in the training split: {_listed(sorted(in_train - in_test, key=str))}; "
        f"only in the test split: {_listed(sorted(in_test - in_train, key=str))}"
    )
    cure = "Split again, stratified by class, or leave these classes out."
    return Finding("class_coverage", "warn", float(len(lonely)), detail, cure)


def _constant_series(both: list[Collection]) -> Finding:
    """Warn of series that never change in any channel."""
    names: list[str] = []
    for data in both:
        channels = [st.channel(data, c) for c in range(data.values.shape[1])]
        constant = np.all([st.minimum(x) == st.maximum(x) for x in channels], axis=0)
        names += [data.names[i] for i in np.flatnonzero(constant)]
    total = sum(map(len, both))
    detail = f"{len(names)} of {total} series are constant"
    if not names:
        return Finding("constant_series", "ok", 0.0, detail)
    cure = "Drop them unless a constant is what a class looks like; scaling turns them to zeros."
    detail += f": {_listed(names)}"
    return Finding("constant_series", "warn", len(names) / total, detail, cure)


def _missing_share(both: list[Collection]) -> Finding:
    """Warn of missing steps inside series; padding is not missing."""
    steps = sum(int(data.lengths.sum()) for data in both)
    missing = steps - sum(int(data.mask.sum()) for data in both)
    share = missing / steps if steps else 0.0
    detail = f"{missing} of {steps} time steps are missing"
    if not missing:
        return Finding("missing_share", "ok", share, detail)
    return Finding("missing_share", "warn", share, detail, "Read with missing='interpolate'.")


def _drift(train: Collection, test: Collection) -> Finding:
    """Compare the splits' statistics by two-sample Kolmogorov-Smirnov tests (Bonferroni)."""
    distances: dict[str, float] = {}
    channels = range(min(train.values.shape[1], test.values.shape[1]))
    for name, statistic in _DRIFTING.items():
        distances[name] = max(
            _ks_distance(statistic(st.channel(train, c)), statistic(st.channel(test, c)))
            for c in channels
        )
    distances["length"] = _ks_distance(train.lengths.astype(float), test.lengths.astype(float))
    tests = (len(distances) - 1) * len(channels) + 1
    drifted = {
        name: d
        for name, d in sorted(distances.items(), key=lambda item: -item[1])
        if d >= _MIN_DRIFT and _ks_p_value(d, len(train), len(test)) * tests <= FAMILY_ERROR
    }
    worst = max(distances, key=lambda name: distances[name])
    shown = drifted or {worst: distances[worst]}
    detail = "Kolmogorov-Smirnov distance train to test: " + ", ".join(
        f"{name} {d:.2f}" for name, d in shown.items()
    )
    if not drifted:
        return Finding("drift", "ok", distances[worst], detail)
    cure = "Expect a lower score than in validation; validate on data recorded like the test split."
    return Finding("drift", "warn", distances[worst], detail, cure)


def _ks_distance(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " m"]) -> float:
    """Largest difference between two empirical distribution functions."""
    a, b = np.sort(a), np.sort(b)
    at = np.concatenate([a, b])
    below_a = np.searchsorted(a, at, side="right") / len(a)
    below_b = np.searchsorted(b, at, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def _ks_p_value(distance: float, n: int, m: int) -> float:
    """Asymptotic p-value 2 sum_k (-1)^(k-1) exp(-2 k^2 x^2), x = distance sqrt(n m / (n + m))."""
    x = distance * sqrt(n * m / (n + m))
    terms = (2 * (-1) ** (k - 1) * exp(-2 * k**2 * x**2) for k in range(1, 101))
    # Below 0.2 the p-value is 1 to 13 digits, and the sum converges slowly.
    return min(1.0, max(0.0, sum(terms))) if x > 0.2 else 1.0


def _listed(items: list[object] | list[str]) -> str:
    """Join the first few items."""
    return ", ".join(map(str, items[:_SHOWN])) + (", ..." if len(items) > _SHOWN else "") or "none"
