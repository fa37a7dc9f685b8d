"""The statistics, the stump and its interval against plain definitions."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ks_2samp

from lagformer.data import Collection
from lagformer.data import audit_statistics as statistics
from lagformer.data.audit_splits import _ks_distance, _ks_p_value
from lagformer.data.audit_stump import best_stump, make_target

value = st.one_of(st.integers(-3, 3).map(float), st.floats(-10, 10).map(lambda v: round(v, 2)))
rows = st.lists(st.lists(value, min_size=1, max_size=9), min_size=1, max_size=4)


@given(rows)
def test_statistics_against_their_definitions(series):
    data = Collection.from_arrays([np.array(s) for s in series])
    x = statistics.channel(data, 0)
    for name, of in {
        "distinct_values": lambda s: len(set(s)) / len(s),
        "repeated_values": lambda s: sum(a == b for a, b in pairwise(s)) / len(s),
        "constant_run": lambda s: max(len(list(g)) for _, g in groupby(s)) / len(s),
        "mean": lambda s: sum(s) / len(s),
        "standard_deviation": np.std,
        "minimum": min,
        "maximum": max,
        "first_value": lambda s: s[0],
        "last_value": lambda s: s[-1],
    }.items():
        expected = [of([v + 0.0 for v in s]) for s in series]
        got = getattr(statistics, name)(x)
        assert got == pytest.approx(expected, rel=1e-12, abs=1e-12), name


def test_holes_are_skipped():
    data = Collection.from_arrays(np.array([[1.0, 1, np.nan, 1, 4]]), missing="mask")
    x = statistics.channel(data, 0)
    assert statistics.missing_values(data) == pytest.approx(1 / 5)
    assert statistics.constant_run(x) == 2 / 4
    assert statistics.repeated_values(x) == 1 / 4
    assert statistics.mean(x) == 7 / 4


@pytest.mark.parametrize("step", [1e-6, 0.004, 0.25, 3.0])
def test_quantisation_step_is_found_with_offset_and_rounding(step):
    rng = np.random.default_rng(0)
    lattice = step * rng.integers(0, 300, size=(20, 200)) + 0.123456 * step
    free = rng.normal(size=(20, 200))
    found = statistics.quantisation_step(np.concatenate([lattice + 1e-9 * step, free]))
    assert found[:20] == pytest.approx(step, rel=1e-4)
    assert not found[20:].any()


def test_one_lattice_for_all_is_nobodys_mark():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(0, 9, (5, 40)), rng.integers(0, 99999, (5, 40))]) * 1.0
    assert (statistics.quantisation_step(x) == 1).all()


@pytest.mark.parametrize(("text", "digits"), [("{:.3f}", 3), ("{:.7e}", 7)])
def test_written_digits(text, digits):
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.integers(-3, 4, size=(30, 1))
    x = np.vectorize(lambda v: float(text.format(v)))(size * rng.normal(size=(30, 50)))
    assert (statistics.written_digits(x) == digits).all()


@given(st.integers(0, 500))
def test_stump_against_every_threshold(seed):
    """The threshold splits the whole training set as well as any does."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat([0, 1], [12, int(rng.integers(12, 30))]))
    feature = rng.integers(0, 8, len(y)) + 2.0 * y * rng.integers(0, 2)
    target = make_target(y, 1, seed)
    stump = best_stump(feature[:, None], target)

    def balanced(threshold, below):
        predicted = (feature <= threshold) == below
        return (predicted[y == 0].mean() + (~predicted)[y == 1].mean()) / 2

    best = max(balanced(t, below) for t in np.unique(feature) for below in (True, False))
    assert balanced(stump.threshold, stump.below) == pytest.approx(best, abs=1e-12)
    assert stump.low <= stump.score <= stump.high


def test_score_is_cross_validated():
    """A stump tuned to noise looks good on its own data; its score must not."""
    scores = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.arange(40) % 2)
        scores.append(best_stump(rng.normal(size=(40, 1)), make_target(y, 1, seed)).score)
    # The standard deviation of one score is about 0.5 / sqrt(40).
    assert np.mean(scores) < 0.5 + 4 * 0.08 / np.sqrt(40)


def test_interval_joins_wilson_intervals_at_the_family_level():
    y = np.repeat([0, 1], 50)
    feature = np.concatenate([np.repeat([0.0, 1.0], [45, 5]), np.repeat([0.0, 1.0], [10, 40])])
    tried = 7
    stump = best_stump(feature[:, None], make_target(y, tried, 0))
    level = 1 - 0.05 / tried
    below = above = 0.0
    for hits in (45, 40):
        interval = binomtest(hits, 50).proportion_ci(level, method="wilson")
        below += (hits / 50 - interval.low) ** 2
        above += (interval.high - hits / 50) ** 2
    assert stump.score == pytest.approx(0.85)
    assert stump.low == pytest.approx(0.85 - np.sqrt(below) / 2, rel=1e-9)
    assert stump.high == pytest.approx(0.85 + np.sqrt(above) / 2, rel=1e-9)


def test_small_classes_are_not_judged():
    assert make_target(np.repeat([0, 1], [9, 50]), 1, 0) is None
    assert make_target(np.zeros(50), 1, 0) is None
    assert make_target(np.repeat([0, 1, 2], [9, 10, 30]), 1, 0).labels == (1, 2)


@given(st.integers(0, 200))
def test_kolmogorov_smirnov_against_scipy(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 6, 40) * 1.0, rng.integers(0, 6, 70) + rng.choice([0.0, 1.0])
    expected = ks_2samp(a, b, method="asymp")
    distance = _ks_distance(a, b)
    assert distance == pytest.approx(expected.statistic, abs=1e-12)
    # scipy rounds n m / (n + m) to an integer before it evaluates the exact finite-n law.
    assert _ks_p_value(distance, 40, 70) == pytest.approx(expected.pvalue, abs=0.1)
