"""Scaling, merging of repeats and the validation split, against plain definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import Collection
from lagformer.preprocessing import (
    Scaling,
    WeightedSeries,
    digests,
    hold_out,
    merge_repeats,
    phase_locked,
    short,
    trimmed,
)

RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((5, 2, 9)) * 3 + 4
MASK = RNG.random((5, 9)) < 0.7
VALUES = VALUES * MASK[:, None]


def test_scaling_of_the_whole_set_is_mean_and_deviation_of_the_real_steps() -> None:
    scaled = Scaling.of(VALUES, MASK, per_series=False).apply(VALUES, MASK)
    assert scaled.dtype == np.float32
    for channel in range(2):
        real = VALUES[:, channel][MASK]
        expected = np.where(MASK, (VALUES[:, channel] - real.mean()) / real.std(), 0)
        np.testing.assert_allclose(scaled[:, channel], expected, rtol=1e-6, atol=1e-6)


def test_scaling_per_series() -> None:
    scaled = Scaling.of(VALUES, MASK, per_series=True).apply(VALUES, MASK)
    for i in range(5):
        for channel in range(2):
            real = VALUES[i, channel, MASK[i]]
            expected = (real - real.mean()) / real.std()
            np.testing.assert_allclose(scaled[i, channel, MASK[i]], expected, rtol=1e-5, atol=1e-6)
    assert not scaled.transpose(1, 0, 2)[:, ~MASK].any()


@pytest.mark.parametrize("per_series", [False, True])
@pytest.mark.parametrize("exponent", [-600, 10, 1000])
def test_the_unit_does_not_matter(per_series: bool, exponent: int) -> None:
    """Powers of two round nothing: equal bits, squares beyond float64's range or not."""
    scaled = [
        Scaling.of(v, MASK, per_series=per_series).apply(v, MASK)
        for v in (VALUES, VALUES * 2.0**exponent)
    ]
    assert np.array_equal(*scaled)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6 / 3, 1e300, 5e-324])
@pytest.mark.parametrize("per_series", [False, True])
def test_constants_become_zeros(value: float, per_series: bool) -> None:
    constant = np.full((3, 1, 700), value)
    mask = np.ones((3, 700), dtype=bool)
    assert not Scaling.of(constant, mask, per_series=per_series).apply(constant, mask).any()


def test_what_rounding_leaves_of_a_constant_is_no_signal() -> None:
    nearly = (0.1 + np.arange(9.0)) - np.arange(9.0)
    assert len(set(nearly)) > 1
    mask = np.ones((1, 9), dtype=bool)
    values = nearly[None, None]
    assert not Scaling.of(values, mask, per_series=True).apply(values, mask).any()


def test_digests_tell_series_apart_whatever_they_are_padded_to() -> None:
    bare = Collection.from_arrays([[1.0, 0.0], [1.0, -0.0], [1.0], [0.0, 1.0]])
    padded = Collection.from_arrays([[1, 0], [1, -0.0], [1], [0, 1], [9] * 9])
    first = digests(bare)
    assert first == digests(padded)[:4]
    assert first[0] == first[1], "-0.0 is 0.0"
    assert len({*first}) == 3
    hole = Collection.from_arrays([[1, np.nan, 2], [1, 0, 2]], missing="mask")
    assert len({*digests(hole)}) == 2
    assert len(np.unique(short(first))) == 3


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1)
)
def test_repeats_are_merged_and_sorted(rows: list[tuple[int, int, int]]) -> None:
    value, target, weight = (np.array(column) for column in zip(*rows, strict=True))
    if not weight.any():
        return
    merged = []
    for order in (np.arange(len(rows)), RNG.permutation(len(rows))):
        data = Collection.from_arrays([[float(v), 1.0] for v in value[order]])
        merged.append(merge_repeats(data, target[order], weight[order] * 1.0, digests(data)))
    found = {
        (int(v), int(t)): w
        for v, t, w in zip(
            merged[0].collection.values[:, 0, 0],
            merged[0].targets,
            merged[0].weights,
            strict=True,
        )
    }
    expected: dict[tuple[int, int], int] = {}
    for v, t, w in rows:
        expected[v, t] = expected.get((v, t), 0) + w
    assert found == {key: w for key, w in expected.items() if w}
    assert len(found) == len(merged[0])
    assert np.array_equal(merged[0].collection.values, merged[1].collection.values)
    assert np.array_equal(merged[0].weights, merged[1].weights)


def test_trimming_cuts_what_is_padding_everywhere() -> None:
    data = Collection.from_arrays([[1, 2, 3, 4], [1, np.nan, np.nan, np.nan]], missing="mask")
    assert trimmed(data).values.shape == (2, 1, 4)
    assert trimmed(data.subset([1])).values.shape == (1, 1, 1)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    fraction=st.floats(0, 0.999),
    seed=st.integers(0, 9),
)
def test_the_split_is_stratified_and_leaves_every_class_in_training(
    counts: list[int], fraction: float, seed: int
) -> None:
    targets = np.repeat(np.arange(len(counts)), counts)
    if len(targets) == 0:
        return
    kept, held = hold_out(targets, fraction, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(len(targets)))
    for c, m in enumerate(counts):
        share = int((targets[held] == c).sum())
        assert share == max(min(int(m * fraction + 0.5), m - 1), 0)
        assert (targets[kept] == c).sum() >= min(m, 1)


def test_the_split_is_random() -> None:
    targets = np.zeros(100, dtype=int)
    first, second = (hold_out(targets, 0.5, np.random.default_rng(s))[1] for s in (0, 1))
    assert not np.array_equal(first, second)


# ------------------------------------------------------------------------------------- phase


def phases(values: np.ndarray, targets: np.ndarray) -> bool:
    weights = np.ones(len(targets))
    return phase_locked(WeightedSeries(Collection.from_arrays(values), targets, weights))


def test_windows_cut_at_any_moment_have_no_phase() -> None:
    n = 400
    rng = np.random.default_rng(0)
    targets = np.arange(n) % 2
    start = rng.uniform(0, 2 * np.pi, (n, 1))
    free = np.sin(start + (0.3 + 0.1 * targets[:, None]) * np.arange(200))
    assert not phases(free, targets)
    assert phases(free + 0.5 * targets[:, None], targets)  # a difference in level
    locked = np.sin(0.1 * start + (0.3 + 0.1 * targets[:, None]) * np.arange(200))
    assert phases(locked, targets)
    assert phases(locked * 1e200, targets)


def test_what_cannot_be_judged_counts_as_locked() -> None:
    assert phases(np.zeros((4, 9)), np.array([0, 0, 1, 1]))
    assert phases(np.random.default_rng(0).normal(size=(2, 9)), np.array([0, 1]))
