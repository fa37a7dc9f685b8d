"""What a fitted method predicted, how that is kept in a run folder, and the mean of several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lagformer.training.checkpoint import write_atomically


@dataclass(frozen=True)
class Outcome:
    """What a fitted method predicted, and what that took."""

    predicted: list[int]
    """Class indices."""
    parameters: int
    fit_seconds: float
    predict_seconds: float
    probabilities: list[list[float]] | None = None
    """(n, classes), of the models alone: what an ensemble averages."""


def ensemble(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of the models together: the class of the highest mean probability.

    Sizes and seconds add up. Every outcome must hold probabilities of the same series.
    """
    mean = np.mean([np.array(outcome.probabilities) for outcome in outcomes], axis=0)
    return Outcome(
        predicted=mean.argmax(axis=1).tolist(),
        parameters=sum(outcome.parameters for outcome in outcomes),
        fit_seconds=sum(outcome.fit_seconds for outcome in outcomes),
        predict_seconds=sum(outcome.predict_seconds for outcome in outcomes),
        probabilities=mean.tolist(),
    )


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Keep the outcome in `folder`: from now on what it belongs to counts as finished."""
    write_atomically(folder / "outcome.json", json.dumps(asdict(outcome)).encode())


def read_outcome(folder: Path, *, probabilities: bool) -> Outcome | None:
    """Return the outcome kept in `folder`; None if there is none yet.

    Raises ValueError, in one line, for a damaged file and for one without the probabilities asked
    for.
    """
    path = folder / "outcome.json"
    if not path.exists():
        return None
    try:
        outcome = Outcome(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{path} is damaged; remove its folder to fit that again") from None
    if probabilities and outcome.probabilities is None:
        raise ValueError(
            f"{path} holds no probabilities: an earlier version wrote it; remove its folder to "
            "train that model again"
        )
    return outcome
