"""The rows of a run as tables: the CSV, the summary over seeds, the published figures beside them.

A row is a dict: method, preset, data, seed, split ("validation" or "test"), the fields of `Score`,
parameters, fit_seconds and predict_seconds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

# Macro F1 of the published table, on raw FordA: (validation, official test) where it gives them.
PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    "random": (0.50, 0.50),
    "logistic-raw": (0.508, None),
    "logistic-log-spectrum": (0.912, None),
    "half-epochs-plain": (0.919, None),  # 40 epochs, no augmentation
    "half-epochs": (0.932, None),
    "half-patches": (0.908, None),  # patches of 5 samples
    "toeplitz": (None, None),  # a scalar for each lag instead of a vector: not in that table
    "lagformer": (0.942, 0.944),
}

ENSEMBLE = "lagformer-ensemble"
"""The method of the rows whose seed is all of them: "0+1+2"."""

COLUMNS = (
    "method",
    "preset",
    "data",
    "seed",
    "macro_f1",
    "accuracy",
    "parameters",
    "fit_seconds",
    "predict_seconds",
)


def published(method: str, preset: str) -> tuple[float | None, float | None]:
    """Return the published (validation, test) macro F1 of what a row holds, where there is one."""
    unchanged = preset in ("", "olympiad")  # of any other preset nothing is published
    return PUBLISHED.get(method, (None, None)) if unchanged else (None, None)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and sample standard deviation over the seeds, per data, method and split."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["method"], row["split"]), []).append(row["macro_f1"])
    return [
        {
            "data": data,
            "method": method,
            "split": where,
            "seeds": len(scores),
            "macro_f1_mean": float(np.mean(scores)),
            "macro_f1_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        }
        for (data, method, where), scores in groups.items()
    ]


def to_csv(rows: Sequence[dict[str, Any]], split: str) -> str:
    """Return the rows of one split as CSV with the columns of `COLUMNS`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in rows if row["split"] == split)
    return text.getvalue()
