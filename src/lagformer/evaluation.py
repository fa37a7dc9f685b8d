"""What a trained classifier says about labelled and unlabelled data, as scores and tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

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


def write_predictions(
    model: LagformerClassifier,
    pieces: Iterable[Collection],
    *,
    table: TextIO | None = None,
    as_json: TextIO | None = None,
) -> None:
    """Predict piece after piece and write each series' label and probabilities at once.

    Args:
        model: a fitted classifier.
        pieces: the series; nothing is kept of a piece that is done.
        table: file for a CSV table: name, label, probability of each class.
        as_json: file for one JSON object: ``classes``, and ``predictions``, each with ``name``,
            ``label`` and ``probabilities``.

    Nothing is written before the first piece is predicted. Raises as
    `LagformerClassifier.predict_proba` does.
    """
    classes = model.classes_.tolist()
    rows = None if table is None else csv.writer(table, lineterminator="\n")
    separator = ""
    for piece in pieces:
        probabilities = model.predict_proba(piece)
        if not separator and rows is not None:
            rows.writerow(["name", "label", *(f"probability of {c}" for c in classes)])
        if not separator and as_json is not None:
            as_json.write(f'{{"classes": {json.dumps(classes)}, "predictions": [')
        for name, p in zip(piece.names, probabilities, strict=True):
            label = classes[p.argmax()]
            if rows is not None:
                rows.writerow([name, label, *(f"{x:.6g}" for x in p.tolist())])
            if as_json is not None:
                row = {"name": name, "label": label, "probabilities": p.tolist()}
                as_json.write(separator + json.dumps(row))
            separator = ", "
    if as_json is not None:
        as_json.write("]}\n")
