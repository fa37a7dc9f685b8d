"""Other people's classifiers, aeon's, fitted and timed as ours are: on one core."""

from __future__ import annotations

import importlib
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lagformer.outcomes import Outcome, write_outcome
from lagformer.training.history import EpochRecord
from lagformer.training.loop import OnEpoch

PEERS = {
    "minirocket": ("aeon.classification.convolution_based", "MiniRocketClassifier"),
    "multirocket-hydra": ("aeon.classification.convolution_based", "MultiRocketHydraClassifier"),
    "hydra": ("aeon.classification.convolution_based", "HydraClassifier"),
    "quant": ("aeon.classification.interval_based", "QUANTClassifier"),
}
"""Module and class of each, all with aeon's defaults."""


def require_aeon() -> None:
    """Raise ValueError, with the cure, where aeon is not installed."""
    if find_spec("aeon") is None:
        raise ValueError("the peers are aeon's classifiers: pip install 'lagformer[aeon]'")


def build_peer(name: str, seed: int) -> Any:
    """Return an unfitted classifier of `PEERS`; X is (n, C, L)."""
    module, class_name = PEERS[name]
    return getattr(importlib.import_module(module), class_name)(random_state=seed)


def fit_peer(
    name: str,
    seed: int,
    targets: NDArray[np.int64],
    train: Float[np.ndarray, "n C L"],
    unseen: Float[np.ndarray, "m C L"],
) -> Outcome:
    """Fit a peer on all of `train` and predict the unseen series, on one core.

    aeon seeds the global generators and sets the number of torch's threads: call it in a process
    of its own. What numba compiles once per machine is compiled before the clock starts.
    """
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        noise = np.random.default_rng(0).normal(size=(8, *train.shape[1:]))
        build_peer(name, seed).fit(noise, np.arange(8) % 2).predict(noise)
        peer = build_peer(name, seed)
        began = time.perf_counter()
        peer.fit(train, targets)
        fitted = time.perf_counter()
        predicted = peer.predict(unseen)
        done = time.perf_counter()
    return Outcome(predicted.tolist(), 0, fitted - began, done - fitted)


def run_peer(
    name: str,
    seed: int,
    folder: Path,
    targets: NDArray[np.int64],
    train: Float[np.ndarray, "n C L"],
    unseen: Float[np.ndarray, "m C L"],
    on_epoch: OnEpoch,
) -> Outcome:
    """Fit a peer and keep its outcome in `folder`; its one epoch ends when it does."""
    outcome = fit_peer(name, seed, targets, train, unseen)
    folder.mkdir(parents=True, exist_ok=True)
    write_outcome(outcome, folder)
    on_epoch(EpochRecord(epoch=1, seconds=outcome.fit_seconds))
    return outcome
