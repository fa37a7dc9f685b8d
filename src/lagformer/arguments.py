"""What `LagformerClassifier` is given, checked: labels, weights, seed, device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike, NDArray

from lagformer.preprocessing import WeightedSeries


def is_table(X: Any) -> bool:
    """Whether X is two-dimensional: an array, a DataFrame, or a list of equally long lists."""
    if isinstance(X, list | tuple):
        rows = all(isinstance(row, list | tuple) and np.ndim(row[0]) == 0 for row in X)
        return rows and len({len(row) for row in X}) == 1
    dimensions: int = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
    return dimensions == 2


def sorted_classes(labels: NDArray[Any]) -> tuple[NDArray[Any], Int64[np.ndarray, " n"]]:
    """Return the classes, sorted, and the index of each label's class.

    Raises ValueError for fractional labels, bytes, and a mixture of text and numbers.
    """
    if any(isinstance(label, bytes) for label in labels.tolist()):
        raise ValueError("labels are bytes; decode them to text first: y.astype(str)")
    if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
        first = labels[labels != np.floor(labels)][0]
        raise ValueError(f"Unknown label type: continuous. y must hold classes, but holds {first}.")
    try:
        classes, targets = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels.tolist()}))
        raise ValueError(f"labels must be all text or all numbers, got {kinds}") from None
    return classes, targets


def sample_weights(sample_weight: ArrayLike | None, n: int) -> Float64[np.ndarray, " n"]:
    """Return (n,) weights; ValueError unless they are finite, ≥ 0 and not all zero."""
    if sample_weight is None:
        return np.ones(n)
    weights = np.array(sample_weight, dtype=np.float64)
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), got {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("sample_weight must hold finite numbers ≥ 0")
    if not weights.any():
        raise ValueError("sample_weight must not be all zero: no series has any weight")
    return weights


def class_weights(
    class_weight: str | Mapping[Any, float] | None, classes: NDArray[Any], train: WeightedSeries
) -> Float64[np.ndarray, " classes"]:
    """Return the weight of each class; "balanced": W / (k · W_c), W the sum of all weights.

    Raises ValueError for anything but "balanced", None, or a mapping of classes to weights ≥ 0.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, Mapping):
        known = classes.tolist()
        if unknown := [label for label in class_weight if label not in known]:
            raise ValueError(f"class_weight names {unknown[0]!r}, which is no class of y")
        weights = np.array([class_weight.get(label, 1.0) for label in known], dtype=np.float64)
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"class_weight must hold finite numbers ≥ 0, got {class_weight}")
        return weights
    if class_weight != "balanced":
        raise ValueError(f'class_weight must be "balanced", a dict or None, got {class_weight!r}')
    totals = np.bincount(train.targets, train.weights, len(classes))
    totals[totals == 0] = np.inf  # an absent class needs no weight
    balanced: Float64[np.ndarray, " classes"] = train.weights.sum() / len(classes) / totals
    return balanced


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed, fresh for None; numpy's global state is left alone."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    raise ValueError(
        f"random_state must be an integer ≥ 0, a numpy RandomState or None, got {random_state!r}"
    )


def device_of(name: str) -> torch.device:
    """Return the device `name`; "auto": CUDA, else MPS, else CPU. ValueError if it is not there."""
    if name == "auto":
        mps = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else mps)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} is not available: {reason}") from None
    return device
