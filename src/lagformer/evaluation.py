"""What a trained classifier says about labelled and unlabelled data, as scores and tables."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float64
from numpy import ndarray
from numpy.typing import NDArray

from lagformer.classifier import LagformerClassifier
from lagformer.data import Collection
from lagformer.scores import Score, score


@dataclass(frozen=True)
class Evaluation:
    """The score on data, and how much of the data is no news to the model."""

    score: Score
    series: int
    seen_in_training: int
    """Series that were also in training: the score is too good by them."""


def evaluate(model: LagformerClassifier, data: Collection) -> Evaluation:
    """Score the model's predictions against the labels.

    Raises ValueError for data without labels, with labels of another kind than the model's
    (text and numbers), and for data the model was trained on, every series of it.
    """
    name = data.source or "the data"
    if data.labels is None:
        raise ValueError(f"{name} holds no labels to compare predictions with")
    first = data.labels.tolist()[0], model.classes_.tolist()[0]
    if isinstance(first[0], str) != isinstance(first[1], str) or isinstance(first[0], bytes):
        raise ValueError(
            f"the labels of {name} are like {first[0]!r}, the model's like {first[1]!r}: they must "
            "be all text or all numbers"
        )
    seen = int(model.seen_in_training(data).sum())
    if seen == len(data):
        raise ValueError(
            f"{name} is what the model was trained on, all {seen} series: a score on it says "
            "nothing about new ones"
        )
    return Evaluation(score(data.labels, model.predict(data)), len(data), seen)


@dataclass(frozen=True)
class Predictions:
    """One label and its probabilities per series."""

    names: tuple[str, ...]
    labels: NDArray[Any]
    classes: NDArray[Any]
    probabilities: Float64[ndarray, "n classes"]

    @classmethod
    def of(cls, model: LagformerClassifier, data: Collection) -> Predictions:
        """Predict every series. Raises as `LagformerClassifier.predict_proba` does."""
        probabilities = model.predict_proba(data)
        labels = model.classes_[probabilities.argmax(axis=1)]
        return cls(data.names, labels, model.classes_, probabilities)

    def to_csv(self) -> str:
        """Return a table: name, label, probability of each class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", "label", *(f"probability of {c}" for c in self.classes.tolist())])
        writer.writerows(
            [name, label, *(f"{p:.6g}" for p in row)]
            for name, label, row in zip(
                self.names, self.labels.tolist(), self.probabilities.tolist(), strict=True
            )
        )
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Return an object json.dumps takes."""
        rows = zip(self.names, self.labels.tolist(), self.probabilities.tolist(), strict=True)
        return {
            "classes": self.classes.tolist(),
            "predictions": [{"name": n, "label": c, "probabilities": p} for n, c, p in rows],
        }
