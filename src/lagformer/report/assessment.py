"""Everything a report measures on a finished model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray
from numpy.typing import NDArray

from lagformer.classifier import LagformerClassifier
from lagformer.data import AuditReport, Collection, audit
from lagformer.evaluation import Evaluation, evaluate
from lagformer.preprocessing import Scaling
from lagformer.report.attribution import Deletion, attribute, deletion_test
from lagformer.report.kernels import HeadKernel, kernels_of
from lagformer.report.reliability import Reliability, reliability
from lagformer.report.subject import Subject

DRAWN = 4  # series of each kind
_KERNEL_SAMPLES = 500_000  # read for the mean query


@dataclass(frozen=True)
class Example:
    """A series worth looking at, and what pushed the decision on it."""

    index: int
    """In the scored data."""
    name: str
    true: Any
    predicted: Any
    probability: float
    """Of the predicted label."""
    probability_true: float
    spans: list[tuple[int, int]]
    """First step, step after the last."""
    fall: float
    """Of the predicted label's log odds when the heaviest window is flat."""

    @property
    def right(self) -> bool:
        """Whether the predicted label is the true one."""
        return bool(self.true == self.predicted)


@dataclass(frozen=True)
class Assessment:
    """What was measured on the scored data."""

    evaluation: Evaluation
    reliability: Reliability
    deletion: Deletion | None
    hardest: list[Example]
    """The true label least probable: confident errors first."""
    certain: list[Example]
    """Right, and most probable; a series of each class before a second one."""
    bold_errors: list[str]
    """Names of series whose wrong label has a probability over 0.9."""
    kernels: list[HeadKernel]


def assess(model: LagformerClassifier, data: Collection, train: Collection | None) -> Assessment:
    """Score the model by `evaluate`, then look at how it got there.

    Labels are read after the last prediction that depends on a choice: the pictures and figures
    describe a model that is finished. Raises ValueError as `evaluate` does.
    """
    evaluation = evaluate(model, data)
    probabilities = model.predict_proba(data)
    predicted = probabilities.argmax(axis=1)
    assert data.labels is not None  # evaluate refuses data without
    right: Bool[ndarray, " n"] = np.asarray(model.classes_[predicted] == data.labels)
    confidence = probabilities.max(axis=1)
    of_truth = _probability_of(data.labels, model.classes_, probabilities)
    hardest = np.argsort(of_truth, kind="stable")[:DRAWN]
    certain = _varied(np.argsort(np.where(right, -confidence, 1), kind="stable"), predicted)
    certain = [i for i in certain if right[i] and i not in hardest][:DRAWN]
    drawn = np.array([*hardest, *certain], dtype=np.int64)
    found = attribute(model, data.subset(drawn))
    examples = [
        Example(
            index=int(i),
            name=data.names[i],
            true=data.labels[i].item() if hasattr(data.labels[i], "item") else data.labels[i],
            predicted=model.classes_.tolist()[predicted[i]],
            probability=float(confidence[i]),
            probability_true=float(of_truth[i]),
            spans=found.spans(place),
            fall=float(np.nanmax(found.weights[place])),
        )
        for place, i in enumerate(drawn)
    ]
    bold = np.flatnonzero(~right & (confidence > 0.9))
    return Assessment(
        evaluation=evaluation,
        reliability=reliability(confidence, right),
        deletion=deletion_test(model, data),
        hardest=examples[: len(hardest)],
        certain=examples[len(hardest) :],
        bold_errors=[data.names[i] for i in bold[np.argsort(-confidence[bold], kind="stable")]],
        kernels=kernels(model, data if train is None else train),
    )


def audited(subject: Subject) -> AuditReport | None:
    """Audit the training split with what is scored, or what is known of the two."""
    if subject.train is not None:
        return audit(subject.train, subject.test)
    return None if subject.test is None else audit(subject.test)


def kernels(model: LagformerClassifier, data: Collection) -> list[HeadKernel]:
    """Return the lag kernels for the mean query of up to 256 series, cut to their median length."""
    length = int(np.median(data.lengths))
    long = np.flatnonzero(data.lengths >= length)
    some = data.subset(long[: min(256, max(8, _KERNEL_SAMPLES // length))])
    values, mask = some.values[:, :, :length], some.mask[:, :length]
    scaling = model.scaling_ or Scaling.of(values, mask, per_series=True)
    return kernels_of(model.model_, torch.from_numpy(scaling.apply(values, mask)))


def _probability_of(
    labels: NDArray[Any], classes: NDArray[Any], probabilities: Float64[ndarray, "n classes"]
) -> Float64[ndarray, " n"]:
    """Return the probability of each series' true label, 0 where the model does not know it."""
    column = {label: i for i, label in enumerate(classes.tolist())}
    return np.array(
        [
            row[column[label]] if label in column else 0.0
            for row, label in zip(probabilities, labels.tolist(), strict=True)
        ]
    )


def _varied(order: NDArray[np.int64], classes: NDArray[np.int64]) -> list[int]:
    """Put the first of each class before the others."""
    first = {int(classes[i]): int(i) for i in reversed(order)}.values()
    chosen = [int(i) for i in order if i in first]
    return chosen + [int(i) for i in order if i not in first]
