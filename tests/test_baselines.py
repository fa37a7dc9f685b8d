"""Baselines do what their names say."""

import numpy as np
import pytest

from lagformer.baselines import BASELINES, fit_baseline, log_spectrum
from lagformer.data import Collection


def sines(n: int, seed: int) -> tuple[Collection, np.ndarray]:
    """Random phase: useless to a linear model of the samples, plain in the spectrum."""
    rng = np.random.default_rng(seed)
    targets = np.arange(n) % 2
    phase = 2 * np.pi * rng.random((n, 1))
    X = np.sin(phase + 2 * np.pi * np.arange(40) * (4 + 3 * targets[:, None]) / 40)
    return Collection.from_arrays(X + 0.1 * rng.normal(size=X.shape)), targets


@pytest.mark.parametrize(
    ("name", "low", "high", "parameters"),
    [
        ("random", 0.4, 0.6, 0),
        ("logistic-raw", 0.35, 0.65, 41),
        ("logistic-log-spectrum", 0.99, 1.0, 21),
    ],
)
def test_what_each_can_learn(name: str, low: float, high: float, parameters: int) -> None:
    train, targets = sines(200, 0)
    unseen, truth = sines(400, 1)
    outcome = fit_baseline(BASELINES[name](0), train, targets, unseen)
    assert low <= np.mean(outcome.predicted == truth) <= high
    assert outcome.parameters == parameters
    assert outcome == fit_baseline(BASELINES[name](0), train, targets, unseen).__class__(
        outcome.predicted, outcome.parameters, outcome.fit_seconds, outcome.predict_seconds
    )


def test_the_log_spectrum_written_out() -> None:
    X = np.random.default_rng(0).normal(size=(3, 12))
    spectrum = log_spectrum(X)
    assert spectrum.shape == (3, 6)
    for k in range(1, 7):
        wave = np.exp(-2j * np.pi * k * np.arange(12) / 12)
        np.testing.assert_allclose(spectrum[:, k - 1], np.log(1 + abs(X @ wave)), rtol=1e-12)


def test_the_log_spectrum_does_not_magnify_the_noise_floor() -> None:
    X = np.sin(2 * np.pi * 5 * np.arange(100) / 100)[None]
    lattice = np.round(X, 3)
    assert np.abs(log_spectrum(X) - log_spectrum(lattice)).max() < 0.02
