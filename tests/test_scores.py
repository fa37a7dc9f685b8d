"""Scores against scikit-learn, scipy and resampling written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from lagformer.scores import mark, score, wilson_interval

LABELS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=40)


@given(data=st.data(), true=LABELS)
def test_scores_and_confusion(data: st.DataObject, true: list[str]) -> None:
    size = len(true)
    predicted = data.draw(st.lists(st.sampled_from("abc"), min_size=size, max_size=size))
    scores = score(true, predicted)
    assert scores.accuracy == pytest.approx(np.mean(np.array(true) == np.array(predicted)))
    assert scores.macro_f1 == f1_score(true, predicted, average="macro")
    for i, row in enumerate(scores.classes):
        for j, column in enumerate(scores.classes):
            pairs = zip(true, predicted, strict=True)
            assert scores.confusion[i][j] == sum(pair == (row, column) for pair in pairs)
    for low, high in (scores.macro_f1_interval, scores.accuracy_interval):
        assert -1e-12 <= low <= high <= 1 + 1e-12


@given(n=st.integers(1, 2000), data=st.data())
def test_wilson_interval(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert wilson_interval(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson_interval(1.0, n)[1] <= 1
    assert wilson_interval(0.0, n)[0] >= 0


def test_the_bootstrap_is_a_resampling_of_series() -> None:
    rng = np.random.default_rng(7)
    true = rng.integers(0, 3, 300)
    predicted = np.where(rng.random(300) < 0.8, true, rng.integers(0, 3, 300))
    resampled = []
    for _ in range(1000):
        index = rng.integers(0, 300, 300)
        resampled.append(f1_score(true[index], predicted[index], average="macro"))
    # Two estimates of a quantile from 1000 and 2000 draws: each off by about 0.002.
    expected = tuple(np.quantile(resampled, [0.025, 0.975]))
    assert score(true, predicted).macro_f1_interval == pytest.approx(expected, abs=0.008)


def test_scores_are_reproducible_and_leave_numpy_alone() -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert score([0, 1, 1, 0], [0, 1, 0, 0]) == score([0, 1, 1, 0], [0, 1, 0, 0])
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_unequal_lengths_are_one_line() -> None:
    with pytest.raises(ValueError, match="3 true labels but 2 predicted ones"):
        score([0, 1, 1], [0, 1])


def test_mark() -> None:
    assert mark(0.944, 0.944) == pytest.approx(100)
    assert mark(0.5, 0.9) == 0
    assert mark(0.7, 0.9) == pytest.approx(50)


@pytest.mark.parametrize("best", [0.5, 0.0, 1.1, float("nan")])
def test_an_impossible_best_score_is_one_line(best: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \(0.5, 1\], got"):
        mark(0.9, best)
