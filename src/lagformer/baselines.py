"""Baselines of the published table: chance, and logistic regressions on samples and spectrum."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lagformer.data import Collection
from lagformer.outcomes import Outcome


def log_spectrum(X: Float[np.ndarray, "n L"]) -> Float[np.ndarray, "n L//2"]:
    """Return log(1 + |FFT|) of each row, without the constant term.

    The 1 keeps the noise floor out: log|FFT| alone would magnify what lies below it.
    """
    spectrum: Float[np.ndarray, "n L//2"] = np.log1p(np.abs(np.fft.rfft(X))[:, 1:])
    return spectrum


def _logistic(*steps: Any) -> Pipeline:
    # C was chosen on validation splits of FordA's training set, for the spectrum.
    return make_pipeline(*steps, StandardScaler(), LogisticRegression(C=0.03, max_iter=1000))


BASELINES: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: DummyClassifier(strategy="uniform", random_state=seed),
    "logistic-raw": lambda seed: _logistic(),
    "logistic-log-spectrum": lambda seed: _logistic(FunctionTransformer(log_spectrum)),
}
"""Each builds an unfitted scikit-learn classifier from a seed."""


def fit_baseline(
    classifier: Any, train: Collection, targets: NDArray[np.int64], unseen: Collection
) -> Outcome:
    """Fit a scikit-learn classifier on the flattened series and predict the unseen ones."""
    X, X_unseen = (part.values.reshape(len(part), -1) for part in (train, unseen))
    with threadpool_limits(1):  # as the models are trained, and quicker for sizes like these
        began = time.perf_counter()
        classifier.fit(X, targets)
        fitted = time.perf_counter()
        predicted = classifier.predict(X_unseen)
        done = time.perf_counter()
    linear = classifier[-1] if isinstance(classifier, Pipeline) else None
    parameters = 0 if linear is None else linear.coef_.size + linear.intercept_.size
    return Outcome(predicted.tolist(), parameters, fitted - began, done - fitted)
