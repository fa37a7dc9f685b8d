"""What happens to series between a `Collection` and the network, and before a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from numpy.typing import NDArray

from lagformer.data import Collection


@dataclass(frozen=True)
class Scaling:
    """(x − mean) / scale per channel; a channel that is constant has scale inf and becomes zeros.

    Either the whole training set's (1, C, 1), which keeps differences in level and amplitude
    between series, or each series' own (n, C, 1), which removes them.
    """

    mean: Float64[np.ndarray, "#n C 1"]
    scale: Float64[np.ndarray, "#n C 1"]

    @classmethod
    def of(
        cls,
        values: Float64[np.ndarray, "n C L"],
        mask: Bool[np.ndarray, "n L"],
        *,
        per_series: bool,
    ) -> Scaling:
        """Measure mean and standard deviation over the real steps (masked ones hold 0)."""
        axis = 2 if per_series else (0, 2)
        real = np.broadcast_to(mask[:, None], values.shape)
        peak = np.abs(values).max(axis, keepdims=True)
        unit = np.where(peak > 0, peak, 1.0)  # so that no square overflows or vanishes
        count = real.sum(axis, keepdims=True)
        mean = (values / unit).sum(axis, keepdims=True) / count
        deviation = np.sqrt((((values / unit - mean) * real) ** 2).sum(axis, keepdims=True) / count)
        # What rounding leaves of a constant is no deviation.
        return cls(mean * unit, np.where(deviation > 1e-12, deviation * unit, np.inf))

    def apply(
        self, values: Float64[np.ndarray, "n C L"], mask: Bool[np.ndarray, "n L"]
    ) -> Float32[np.ndarray, "n C L"]:
        """Return scaled values, 0 where masked."""
        with np.errstate(over="ignore"):  # the network's answer is checked to be finite
            scaled: Float32[np.ndarray, "n C L"] = (
                (values - self.mean) / self.scale * mask[:, None]
            ).astype(np.float32)
        return scaled


def digests(collection: Collection) -> list[bytes]:
    """Return 16 bytes for each series that tell it from others, whatever it is padded to."""
    found = []
    for values, mask, length in zip(
        collection.values, collection.mask, collection.lengths, strict=True
    ):
        content = blake2b(digest_size=16)
        content.update((values[:, :length] + 0.0).tobytes())  # + 0.0: -0.0 is 0.0
        content.update(mask[:length].tobytes())
        found.append(content.digest())
    return found


def short(keys: Sequence[bytes]) -> Int64[np.ndarray, " n"]:
    """Return the first 8 bytes of each digest as a number: enough to know a series again."""
    return np.array([int.from_bytes(key[:8], "little", signed=True) for key in keys], np.int64)


@dataclass(frozen=True)
class WeightedSeries:
    """Series with class indices and weights."""

    collection: Collection
    targets: Int64[np.ndarray, " n"]
    weights: Float64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: NDArray[np.int64]) -> WeightedSeries:
        """Return the series at `indices`."""
        return WeightedSeries(
            self.collection.subset(indices), self.targets[indices], self.weights[indices]
        )


def merge_repeats(
    collection: Collection,
    targets: Int64[np.ndarray, " n"],
    weights: Float64[np.ndarray, " n"],
    keys: Sequence[bytes],
) -> WeightedSeries:
    """Replace series of equal class and key (`digests`) by one with the sum of their weights; sort.

    A weight is then exactly a number of repetitions, no repeat of a held-out series is left in
    training, and what is learnt does not depend on the order of the series. Series of weight 0
    are dropped.
    """
    groups: dict[tuple[int, bytes], list[int]] = {}
    for i, key in enumerate(zip(targets.tolist(), keys, strict=True)):
        if weights[i] > 0:
            groups.setdefault(key, []).append(i)
    members = [groups[key] for key in sorted(groups)]
    first = np.array([group[0] for group in members])
    total = np.array([weights[group].sum() for group in members])
    return WeightedSeries(trimmed(collection.subset(first)), targets[first], total)


def trimmed(collection: Collection) -> Collection:
    """Cut off the steps that are padding in every series."""
    length = int(collection.lengths.max())
    return replace(
        collection, values=collection.values[:, :, :length], mask=collection.mask[:, :length]
    )


def phase_locked(examples: WeightedSeries) -> bool:
    """Return whether it matters in these series at what time something happens.

    Windows cut at arbitrary moments have no mean curve: the curves of the classes explain no more
    of the variance than chance does. From 2 % more on, as an adjusted R², the moments are no
    accident, or the classes differ in level. A few dozen series can pass that mark by chance.
    """
    values, mask = examples.collection.values, examples.collection.mask[:, None]
    level = values.sum((0, 2), keepdims=True) / mask.sum()
    x = ((values - level) * mask).reshape(len(examples), -1)
    unit = np.abs(x).max() or 1.0  # so that no square overflows
    x, weights = x / unit, examples.weights
    within, classes = 0.0, np.unique(examples.targets)
    for c in classes:
        members = examples.targets == c
        curve = np.average(x[members], axis=0, weights=weights[members])
        within += float(weights[members] @ np.square(x[members] - curve).sum(1))
    total = float(weights @ np.square(x).sum(1))
    n = len(examples)
    if total == 0 or n <= len(classes):
        return True
    return 1 - (within / (n - len(classes))) / (total / n) > 0.02


def hold_out(
    targets: Int64[np.ndarray, " n"], fraction: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split indices into (training, held out), each class on its own.

    Of m members round(m · fraction) are held out, halves up, but never the last one: a class of
    one is all for training, and small classes may be absent from what is held out.
    """
    held = []
    for c in np.unique(targets):
        members = generator.permutation(np.flatnonzero(targets == c))
        held.append(members[: min(int(len(members) * fraction + 0.5), len(members) - 1)])
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(targets)), held_out), held_out
