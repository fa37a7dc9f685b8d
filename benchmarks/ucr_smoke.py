"""Train the default classifier on every UCR data set at hand: none may fail.

A smoke test and no result: training is cut to what fits the seconds given, on one thread. A set on
which the model does worse than always answering the most frequent class of the training set is
listed and makes the exit code 1, as a failure does. Rows that are already in the CSV are kept.

python benchmarks/ucr_smoke.py [--seconds 30] [--out CSV]
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from sklearn.metrics import accuracy_score, f1_score

from lagformer import LagformerClassifier
from lagformer.data import available_ucr, load_ucr

RESULTS = Path(__file__).parent / "results" / "ucr_smoke.csv"
COLUMNS = [
    "dataset",
    "train_series",
    "length",
    "classes",
    "epochs",
    "macro_f1",
    "accuracy",
    "majority_accuracy",
    "fit_seconds",
    "error",
]


def run(name: str, seconds: float) -> dict[str, object]:
    train, test = load_ucr(name)
    assert train.labels is not None
    assert test.labels is not None
    majority = Counter(train.labels.tolist()).most_common(1)[0][0]
    row: dict[str, object] = {
        "dataset": name,
        "train_series": len(train),
        "length": train.values.shape[2],
        "classes": len(set(train.labels.tolist())),
        "majority_accuracy": round(float((test.labels == majority).mean()), 4),
    }
    try:
        # The readout is solved in the first epoch; the second tells how many there is time for.
        trial = LagformerClassifier(max_epochs=2, random_state=0).fit(train)
        first, pace = (record["seconds"] for record in trial.history_)
        default = LagformerClassifier()._recipe(len(train), not trial.config_["shift"]).epochs
        epochs = max(1, min(default, 1 + int((seconds - first) / pace)))
        began = time.perf_counter()
        model = LagformerClassifier(max_epochs=epochs, random_state=0).fit(train)
        row |= {"epochs": epochs, "fit_seconds": round(time.perf_counter() - began, 1)}
        predicted = model.predict(test)
        row["macro_f1"] = round(float(f1_score(test.labels, predicted, average="macro")), 4)
        row["accuracy"] = round(float(accuracy_score(test.labels, predicted)), 4)
    except Exception as error:  # whatever it is, the other sets still run
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    if arguments.out.exists():
        with arguments.out.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["dataset"]]
    done = {row["dataset"] for row in rows}
    for name in available_ucr():
        if name in done:
            continue
        rows.append(run(name, arguments.seconds))
        print(*(rows[-1].get(column, "") for column in COLUMNS), sep="\t", flush=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    failed = [row["dataset"] for row in rows if row.get("error")]
    worse = [
        row["dataset"]
        for row in rows
        if not row.get("error") and float(row["accuracy"]) < float(row["majority_accuracy"])  # type: ignore[arg-type]
    ]
    print(
        f"{len(rows)} sets; failed: {failed or 'none'}; worse than the majority: {worse or 'none'}"
    )
    return 1 if failed or worse else 0


if __name__ == "__main__":
    sys.exit(main())
