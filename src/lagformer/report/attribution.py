"""Which time spans push a decision, and the test that they do: deletion.

Found by occlusion: a window of a twentieth of the series slides over it in half steps; each channel
in it is set to the series' own mean, and the fall of the predicted class' log odds log p/(1 − p) is
the window's weight. The three heaviest windows that do not overlap are the marked spans.

Tested with another replacement than they were found with: the marked spans are overwritten with the
same stretch of another series of the data, drawn at random, and so are three random windows, five
times over. Spans that matter lower the log odds more than random ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray

from lagformer.classifier import LagformerClassifier
from lagformer.data import Collection

WINDOWS = 20  # in a series, side by side
MARKED = 3  # windows: 15 % of a series
_DRAWS = 5  # of random windows and of content
_SAMPLES = 3_000_000  # that the deletion test has the model read, a few seconds' worth

Selection = Bool[np.ndarray, "n L"]


@dataclass(frozen=True)
class Attribution:
    """What the windows of n series weigh, and which are marked."""

    weights: Float64[np.ndarray, "n W"]
    """Fall of the predicted class' log odds when the window is flat; nan for an empty window."""
    marked: Selection
    """True = a step in a marked span."""
    predicted: Int64[np.ndarray, " n"]
    """Index of the predicted class."""

    def spans(self, index: int) -> list[tuple[int, int]]:
        """Return the marked spans of a series as (first step, step after the last)."""
        padded = np.concatenate([[False], self.marked[index], [False]])
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@dataclass(frozen=True)
class Deletion:
    """Mean fall of the predicted class' log odds and probability: marked against random spans."""

    series: int
    share: float
    """Of the steps of a series that are overwritten, on average."""
    marked: float
    random: float
    probability: float
    """Mean probability of the predicted class, nothing overwritten."""
    probability_marked: float
    probability_random: float
    wins: float
    """Share of the series whose marked spans matter more than the random ones, on average."""

    @property
    def ratio(self) -> float | None:
        """How many times as much the marked spans matter; None if random ones do not at all."""
        return self.marked / self.random if self.random > 0 else None


def attribute(model: LagformerClassifier, data: Collection) -> Attribution:
    """Weigh the windows of every series by occlusion; 39 predictions per series."""
    probabilities = model.predict_proba(data)
    predicted = probabilities.argmax(axis=1)
    before = log_odds(probabilities, predicted)
    real = data.mask.sum(axis=1)
    means = data.values.sum(axis=2, keepdims=True) / real[:, None, None]  # padding holds 0
    weights = np.full((len(data), 2 * WINDOWS - 1), np.nan)
    for w in range(weights.shape[1]):
        window = _window(data, np.full(len(data), w))
        flat = _overwritten(data, window, np.broadcast_to(means, data.values.shape))
        weights[:, w] = before - log_odds(model.predict_proba(flat), predicted)
        weights[~window.any(axis=1), w] = np.nan
    return Attribution(weights, _heaviest(data, weights), predicted)


def deletion_test(
    model: LagformerClassifier, data: Collection, *, seed: int = 0
) -> Deletion | None:
    """Overwrite marked and random spans of a random sample of the series by other series' content.

    The sample holds 10 to 150 series, as many as a few seconds allow. None for less than two
    series: there is no other one to take content from.
    """
    if len(data) < 2:
        return None
    generator = np.random.default_rng(seed)
    size = _SAMPLES // (2 * WINDOWS * data.values.shape[2] * data.values.shape[1])
    size = min(max(size, 10), 150, len(data))
    chosen = np.sort(generator.permutation(len(data))[:size])
    sample = data.subset(chosen)
    found = attribute(model, sample)
    p = model.predict_proba(sample)
    rows, before = (np.arange(size), found.predicted), log_odds(p, found.predicted)
    falls, after = np.zeros((2, size)), np.zeros((2, size))
    for _ in range(_DRAWS):
        content = _content(data, chosen, generator)
        order = np.where(np.isnan(found.weights), np.nan, generator.random(found.weights.shape))
        for k, spans in enumerate((found.marked, _heaviest(sample, order))):
            q = model.predict_proba(_overwritten(sample, spans, content))
            falls[k] += (before - log_odds(q, found.predicted)) / _DRAWS
            after[k] += q[rows] / _DRAWS
    return Deletion(
        series=size,
        share=float((found.marked.sum(axis=1) / sample.mask.sum(axis=1)).mean()),
        marked=float(falls[0].mean()),
        random=float(falls[1].mean()),
        probability=float(p[rows].mean()),
        probability_marked=float(after[0].mean()),
        probability_random=float(after[1].mean()),
        wins=float((falls[0] > falls[1]).mean()),
    )


def log_odds(
    probabilities: Float64[np.ndarray, "n classes"], classes: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """Return log p/(1 − p) of one class per series; 1 − p is summed, for it may be tiny."""
    others = probabilities.copy()
    rows = np.arange(len(classes))
    others[rows, classes] = 0.0
    tiny = np.finfo(float).tiny
    odds: Float64[np.ndarray, " n"] = np.log(probabilities[rows, classes] + tiny) - np.log(
        others.sum(axis=1) + tiny
    )
    return odds


def _window(data: Collection, index: Int64[np.ndarray, " n"]) -> Selection:
    """Select window `index` (half a window apart) of each series, in its real steps."""
    place = np.cumsum(data.mask, axis=1) - 1  # counts real steps
    real = data.mask.sum(axis=1)
    first, last = (-(-(index + k) * real // (2 * WINDOWS)) for k in (0, 2))
    inside: Selection = (place >= first[:, None]) & (place < last[:, None]) & data.mask
    return inside


def _heaviest(data: Collection, weights: Float64[np.ndarray, "n W"]) -> Selection:
    """Select the MARKED heaviest windows of each series that do not overlap."""
    weights = np.where(np.isnan(weights), -np.inf, weights)
    rows = np.arange(len(data))
    selected = np.zeros_like(data.mask)
    for _ in range(MARKED):
        best = weights.argmax(axis=1)
        possible = np.isfinite(weights[rows, best])
        selected |= _window(data, best) & possible[:, None]
        for neighbour in (-1, 0, 1):
            weights[rows, np.clip(best + neighbour, 0, weights.shape[1] - 1)] = -np.inf
    return selected


def _overwritten(
    data: Collection, spans: Selection, content: Float64[NDArray[np.float64], "n C L"]
) -> Collection:
    return replace(data, values=np.where(spans[:, None], content, data.values), labels=None)


def _content(
    data: Collection, chosen: NDArray[np.int64], generator: np.random.Generator
) -> Float64[np.ndarray, "n C L"]:
    """Return for each chosen series the steps of another one, repeated where it is shorter."""
    length = data.values.shape[2]
    donors = (chosen + generator.integers(1, len(data), len(chosen))) % len(data)
    return np.stack(
        [
            np.take(data.values[i][:, data.mask[i]], np.arange(length), axis=1, mode="wrap")
            for i in donors
        ]
    )
