"""The data of the protocol: what is fitted, what is predicted, and no test label.

Variants: `raw` is FordA as published, whose labels leak through the number of distinct values per
series; `dithered` is FordA with N(0, 0.01²) added, which buries the leak and is the honest
headline; `fordb` has no such leak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from lagformer.data import Collection, dither_pair, load_ucr

VARIANTS = {"raw": "FordA", "dithered": "FordA", "fordb": "FordB"}


@dataclass(frozen=True)
class Split:
    """The official split of a data variant, without the test labels."""

    train: Collection
    labels: NDArray[Any]
    """Of the training series."""
    test: Collection

    @property
    def classes(self) -> NDArray[Any]:
        """The labels that occur, sorted."""
        return np.unique(self.labels)

    @property
    def targets(self) -> NDArray[np.int64]:
        """Class indices of the training series."""
        return np.searchsorted(self.classes, self.labels)

    def parts(self, seed: int) -> dict[str, tuple[Collection, NDArray[np.int64], Collection]]:
        """Return what is fitted and what is predicted, for the validation run and for the test."""
        fit_on, held_out = self.validation_indices(seed)
        return {
            "validation": (
                self.train.subset(fit_on),
                self.targets[fit_on],
                replace(self.train.subset(held_out), labels=None),
            ),
            "test": (self.train, self.targets, self.test),
        }

    def validation_indices(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split the training series at random: 80 % to fit on, 20 % held out."""
        fit_on, held_out = train_test_split(
            np.arange(len(self.train)), test_size=0.2, random_state=seed
        )
        return fit_on, held_out


def load_split(variant: str) -> Split:
    """Load a data variant: its training set, and its test set without labels."""
    train, test = load_ucr(VARIANTS[variant])
    if variant == "dithered":
        train, test = dither_pair(train, test)
    assert train.labels is not None  # the first column of every UCR file
    return Split(train, train.labels, replace(test, labels=None))
