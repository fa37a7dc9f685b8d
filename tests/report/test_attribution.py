"""Spans that decided: found where they are known to be, and tested by deletion."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import Collection
from lagformer.report.attribution import (
    MARKED,
    WINDOWS,
    Attribution,
    _heaviest,
    _window,
    attribute,
    deletion_test,
    log_odds,
)


class Listener:
    """Stands for a model: its log odds are the sum of squares in steps 40 to 49, nothing else."""

    def predict_proba(self, data: Collection) -> np.ndarray:
        z = (data.values[:, 0, 40:50] ** 2).sum(axis=1) - 5
        p = 1 / (1 + np.exp(-z))
        return np.stack([1 - p, p], axis=1)


class Deaf:
    """Says the same whatever it is given."""

    def predict_proba(self, data: Collection) -> np.ndarray:
        return np.tile([0.25, 0.75], (len(data), 1))


def collection(n: int = 40, length: int = 200) -> Collection:
    """Noise, loud where `Listener` listens in even series, nearly silent there in odd ones."""
    values = np.random.default_rng(n).standard_normal((n, 1, length))
    values[::2, :, 40:50] = 2.0
    values[1::2, :, 40:50] *= 0.01
    return Collection.from_arrays(values)


def test_the_span_that_decides_is_marked() -> None:
    found = attribute(Listener(), collection())  # type: ignore[arg-type]
    assert (found.predicted == np.tile([1, 0], 20)).all()
    assert found.marked[::2, 40:50].all()
    assert (np.nanargmax(found.weights[::2], axis=1) == 8).all()  # window 8 starts at 8 · 5
    # Squares 4 · 10 less 10 times the square of the series' mean: what flattening takes away.
    mean = collection().values[0].mean()
    assert found.weights[0, 8] == pytest.approx(40, abs=10 * 4 * abs(mean) + 1)


def test_deletion_tells_marked_from_random_spans() -> None:
    data = collection().subset(np.arange(0, 40, 2))
    found = deletion_test(Listener(), data)  # type: ignore[arg-type]
    assert found is not None
    assert found.series == 20
    assert found.share == pytest.approx(MARKED / WINDOWS)
    # Other loud series have the same there: nothing falls, whatever is overwritten.
    assert found.marked == pytest.approx(0, abs=1e-9)
    assert found.ratio is None

    mixed = deletion_test(Listener(), collection())  # type: ignore[arg-type]
    assert mixed is not None
    assert mixed.ratio is not None
    assert mixed.ratio > 2
    assert mixed.probability_marked < mixed.probability_random < mixed.probability


def test_a_model_that_does_not_listen_has_no_spans_that_matter() -> None:
    found = deletion_test(Deaf(), collection())  # type: ignore[arg-type]
    assert found is not None
    assert (found.marked, found.random, found.wins) == (0, 0, 0)
    assert found.ratio is None


def test_equal_seeds_give_equal_tests() -> None:
    data = collection()
    first = deletion_test(Listener(), data, seed=3)  # type: ignore[arg-type]
    assert first == deletion_test(Listener(), data, seed=3)  # type: ignore[arg-type]
    assert first != deletion_test(Listener(), data, seed=4)  # type: ignore[arg-type]


def test_one_series_has_no_other_to_take_from() -> None:
    assert deletion_test(Listener(), collection(1)) is None  # type: ignore[arg-type]


def masked(lengths: list[int], holes: list[int]) -> Collection:
    series = [np.arange(1.0, n + 1) for n in lengths]
    for x, hole in zip(series, holes, strict=True):
        if 0 < hole < len(x) - 1:
            x[hole] = np.nan
    return Collection.from_arrays(series, missing="mask")


@given(st.lists(st.integers(1, 90), min_size=1, max_size=5), st.integers(0, 89))
def test_windows_side_by_side_cover_every_real_step_once(lengths: list[int], hole: int) -> None:
    data = masked(lengths, [hole] * len(lengths))
    covered = np.zeros(data.mask.shape, dtype=int)
    for w in range(0, 2 * WINDOWS - 1, 2):
        inside = _window(data, np.full(len(data), w))
        covered += inside
        real = data.mask.sum(axis=1)
        assert (abs(inside.sum(axis=1) - real / WINDOWS) < 1).all()
    np.testing.assert_array_equal(covered, data.mask)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_marked_windows_do_not_overlap(lengths: list[int], seed: int) -> None:
    data = masked(lengths, [0] * len(lengths))
    weights = np.random.default_rng(seed).standard_normal((len(data), 2 * WINDOWS - 1))
    marked = _heaviest(data, weights)
    real = data.mask.sum(axis=1)
    assert not marked[~data.mask].any()
    assert (abs(marked.sum(axis=1) - MARKED * real / WINDOWS) < MARKED).all()
    best = _window(data, weights.argmax(axis=1))
    assert marked[best].all()


def test_spans_are_half_open() -> None:
    marked = np.zeros((2, 10), dtype=bool)
    marked[0, [0, 1, 5, 9]] = True
    found = Attribution(np.zeros((2, 3)), marked, np.zeros(2, dtype=np.int64))
    assert found.spans(0) == [(0, 2), (5, 6), (9, 10)]
    assert found.spans(1) == []


def test_log_odds_keep_what_rounding_would_lose() -> None:
    p = np.array([[1.0, 1e-30], [0.2, 0.8], [0.0, 1.0]])
    odds = log_odds(p, np.array([0, 1, 0]))
    assert odds[0] == pytest.approx(30 * np.log(10))
    assert odds[1] == pytest.approx(np.log(4))
    assert np.isfinite(odds[2])


def test_nothing_given_is_changed_and_no_label_is_passed_on() -> None:
    data = collection()
    labelled = replace(data, labels=np.arange(len(data)))
    before = labelled.values.copy()

    class Checker(Listener):
        def predict_proba(self, given: Any) -> np.ndarray:
            assert given is labelled or given.labels is None
            return super().predict_proba(given)

    attribute(Checker(), labelled)  # type: ignore[arg-type]
    np.testing.assert_array_equal(labelled.values, before)
