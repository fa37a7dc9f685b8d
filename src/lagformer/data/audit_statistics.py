"""Trivial statistics: one number per series, none of which a model should need.

Each function takes x (n, L) with NaN at padding and missing steps and returns (n,).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64

from lagformer.data.collection import Collection

Series = Float64[np.ndarray, "n L"]
PerSeries = Float64[np.ndarray, " n"]

# A float64 near 1 resolves 15 decimals: text with 12 is still told from a free value.
_MAX_DECIMALS = 12
# Scaling by a power of ten and back costs a few units in the last place.
_ROUNDING = 4
# A gap counts as a multiple of the step when it is this close to one, in steps.
_STEP_TOLERANCE = 0.1
# Share of gaps that must be multiples before a series counts as lying on a lattice.
_LATTICE_SHARE = 0.9


def channel(data: Collection, c: int) -> Series:
    """Return channel c as (n, L) with NaN wherever there is no real time step."""
    return np.where(data.mask, data.values[:, c], np.nan)


def _known(x: Series) -> Int64[np.ndarray, " n"]:
    known: Int64[np.ndarray, " n"] = np.maximum((~np.isnan(x)).sum(axis=1), 1)
    return known


def _gaps(x: Series) -> Series:
    """Positive differences between neighbouring values in order of size; NaN elsewhere."""
    gaps = np.diff(np.sort(x, axis=1), axis=1)
    return np.where(gaps > 0, gaps, np.nan)


def _repeats(x: Series) -> Bool[np.ndarray, "n L-1"]:
    repeated: Bool[np.ndarray, "n L-1"] = np.diff(x, axis=1) == 0
    return repeated


def distinct_values(x: Series) -> PerSeries:
    """Share of a series' samples that are distinct: 1 if no value occurs twice."""
    share: PerSeries = (1 + (_gaps(x) > 0).sum(axis=1)) / _known(x)
    return share


def repeated_values(x: Series) -> PerSeries:
    """Share of steps that repeat the value before them."""
    share: PerSeries = _repeats(x).sum(axis=1) / _known(x)
    return share


def constant_run(x: Series) -> PerSeries:
    """Length of the longest run of one value, as a share of the series."""
    repeats = _repeats(x)
    step = np.arange(repeats.shape[1])
    last_change = np.maximum.accumulate(np.where(repeats, -1, step), axis=1)
    share: PerSeries = (1 + (step - last_change).max(axis=1, initial=0)) / _known(x)
    return share


def quantisation_step(x: Series) -> PerSeries:
    """Return the step of the lattice the values lie on, in the data's unit; 0 if on none.

    When one lattice holds all series, such as the integers, its step is given to all: a series of
    few or of large values need not show it by itself.
    """
    gaps = _gaps(x)
    smallest = np.fmin.reduce(gaps, axis=1, initial=np.inf)
    step = np.where(_on_lattice(gaps, smallest), smallest, 0.0)
    if step.any():
        common = np.full(len(x), step[step > 0].min())
        if (_on_lattice(gaps, common) | np.isinf(smallest)).all():
            return common
    return step


def _on_lattice(gaps: Series, step: PerSeries) -> Bool[np.ndarray, " n"]:
    """Tell whether nearly all of a series' gaps, two at least, are multiples of its step."""
    multiples = gaps / step[:, None]
    near = np.abs(multiples - np.maximum(np.round(multiples), 1)) < _STEP_TOLERANCE
    count = (~np.isnan(gaps)).sum(axis=1)
    on_lattice: Bool[np.ndarray, " n"] = near.sum(axis=1) >= _LATTICE_SHARE * np.maximum(count, 2)
    return on_lattice


def written_digits(x: Series) -> PerSeries:
    """Fewest digits that write every value of a series exactly, 12 at most.

    Counted after the point or after the first digit, whichever differs less among the series: files
    keep one of the two fixed, and the other follows the size of the values.
    """
    exponent = np.floor(np.log10(np.abs(x), out=np.zeros_like(x), where=x != 0))
    after_point, after_first = _decimals(x), _decimals(x / 10.0**exponent)
    return after_point if after_point.std() <= after_first.std() else after_first


def _decimals(x: Series) -> PerSeries:
    """Fewest decimals that write every value of a series."""
    fewest = np.full(len(x), float(_MAX_DECIMALS))
    rows = np.arange(len(x))
    for d in range(_MAX_DECIMALS - 1, -1, -1):
        off = np.abs(x[rows] - np.round(x[rows], d)) > _ROUNDING * np.spacing(np.abs(x[rows]))
        rows = rows[~off.any(axis=1)]
        fewest[rows] = d
    return fewest


def mean(x: Series) -> PerSeries:
    """Mean of the real steps."""
    average: PerSeries = np.nansum(x, axis=1) / _known(x)
    return average


def standard_deviation(x: Series) -> PerSeries:
    """Standard deviation of the real steps (divided by their number)."""
    deviation: PerSeries = np.sqrt(np.nansum((x - mean(x)[:, None]) ** 2, axis=1) / _known(x))
    return deviation


def minimum(x: Series) -> PerSeries:
    """Smallest value."""
    smallest: PerSeries = np.fmin.reduce(x, axis=1)
    return smallest


def maximum(x: Series) -> PerSeries:
    """Largest value."""
    largest: PerSeries = np.fmax.reduce(x, axis=1)
    return largest


def first_value(x: Series) -> PerSeries:
    """Value at the first real step."""
    first: PerSeries = x[np.arange(len(x)), (~np.isnan(x)).argmax(axis=1)]
    return first


def last_value(x: Series) -> PerSeries:
    """Value at the last real step."""
    return first_value(x[:, ::-1])


def roughness(x: Series) -> PerSeries:
    """Root mean square of the step differences over the standard deviation; 0 if constant."""
    steps = np.diff(x, axis=1)
    rms = np.sqrt(np.nansum(steps**2, axis=1) / _known(steps))
    deviation = standard_deviation(x)
    rough = np.zeros(len(x))
    np.divide(rms, deviation, out=rough, where=deviation > 0)
    return rough


def missing_values(data: Collection) -> PerSeries:
    """Share of steps before a series' end that are missing."""
    share: PerSeries = 1 - data.mask.sum(axis=1) / np.maximum(data.lengths, 1)
    return share
