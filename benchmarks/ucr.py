"""The default classifier on every UCR data set at hand, beside aeon's classifiers.

    python benchmarks/ucr.py [--jobs 2] [--methods lagformer,minirocket,multirocket-hydra]
        [--sets Beef,Car] [--seeds 0] [--budget-seconds 3600]
    python benchmarks/ucr.py --report [--published ACCURACIES.csv]

Official splits, one run per set, method and seed, one thread per process; everything with its
defaults, fitted on the training split, and the test split predicted once. Each finished run is a
JSON file in the run folder, so the same command again goes on where it ended; after a change of a
method remove its files. What is there is written to one CSV per method and metric: a row per set,
a column per seed. `sets.csv` says what the sets are.

Missing values and unequal lengths: ours masks them; aeon's classifiers get gaps interpolated and
each series' last value held up to the longest series of both splits.

`--report` prints the mean accuracy on the regular sets and draws critical differences and scatter
plots. Regular are sets of equal length without missing values, with more training series than
classes: Fungi has one of each, and published comparisons leave it out.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score

from lagformer import LagformerClassifier, __version__
from lagformer.data import Collection, available_ucr, load_ucr
from lagformer.peers import PEERS, fit_peer, require_aeon
from lagformer.training.checkpoint import write_atomically
from lagformer.training.loop import OnEpoch
from lagformer.training.queue import Task, run_queue
from ucr_report import report

RESULTS = Path(__file__).parent / "results" / "ucr"
OURS = "lagformer"
METRICS = ("accuracy", "macro_f1", "fit_seconds", "predict_seconds")


def describe(name: str) -> dict[str, Any]:
    """Return a row of sets.csv."""
    train, test = load_ucr(name)
    n, channels, length = train.values.shape
    classes = len(np.unique(train.labels))
    equal = bool(train.mask.all() and test.mask.all() and length == test.values.shape[2])
    return {
        "dataset": name,
        "train_series": n,
        "test_series": len(test),
        "length": max(length, test.values.shape[2]),
        "channels": channels,
        "classes": classes,
        "regular": equal and n > classes,
    }


def held(part: Collection, length: int) -> np.ndarray:
    """Return the values (n, C, length), each series' last one held up to the end."""
    steps = np.minimum(np.arange(length), part.lengths[:, None] - 1)
    return np.take_along_axis(part.values, steps[:, None], axis=2)


def measure(name: str, method: str, seed: int) -> dict[str, Any]:
    """Fit on the training split, predict the test split once, score."""
    train, test = load_ucr(name, missing="mask" if method == OURS else "interpolate")
    assert train.labels is not None
    if method == OURS:
        began = time.perf_counter()
        model = LagformerClassifier(random_state=seed, device="cpu").fit(train)
        fitted = time.perf_counter()
        predicted = model.predict(test)
        seconds = fitted - began, time.perf_counter() - fitted
    else:
        classes, targets = np.unique(train.labels, return_inverse=True)
        length = max(train.values.shape[2], test.values.shape[2])
        outcome = fit_peer(method, seed, targets, held(train, length), held(test, length))
        predicted = classes[outcome.predicted]
        seconds = outcome.fit_seconds, outcome.predict_seconds
    scores = {
        "accuracy": float(accuracy_score(test.labels, predicted)),
        "macro_f1": float(f1_score(test.labels, predicted, average="macro")),
    }
    return scores | dict(zip(("fit_seconds", "predict_seconds"), seconds, strict=True))


def run(name: str, method: str, seed: int, file: Path, deadline: float, _: OnEpoch) -> None:
    """Measure and keep the result; an error is one too, and the other runs go on."""
    if time.time() > deadline:
        return
    result: dict[str, Any] = {"dataset": name, "method": method, "seed": seed}
    try:
        result |= measure(name, method, seed)
        said = f"accuracy {result['accuracy']:.4f}, {result['fit_seconds']:.1f} s to fit"
    except Exception as error:
        result["error"] = said = f"{type(error).__name__}: {error}"
    write_atomically(file, json.dumps(result | {"lagformer": __version__}).encode())
    print(f"{name} {method} {seed}: {said}", flush=True)


def finished(folder: Path) -> list[dict[str, Any]]:
    """Return what the run folder holds, errors left out: they are tried again."""
    results = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]
    return [result for result in results if "error" not in result]


def write_tables(results: Sequence[dict[str, Any]], sets: Sequence[str], out: Path) -> None:
    """Write METHOD_METRIC.csv: a row per set, a column per seed, empty where there is nothing."""
    for method in sorted({result["method"] for result in results}):
        mine = {(r["dataset"], r["seed"]): r for r in results if r["method"] == method}
        seeds = sorted({seed for _, seed in mine})
        for metric in METRICS:
            with (out / f"{method}_{metric}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["dataset", *seeds])
                for name in sets:
                    cells = [mine.get((name, seed), {}).get(metric, "") for seed in seeds]
                    writer.writerow([name, *cells])


def write_sets(out: Path) -> list[dict[str, Any]]:
    """Write sets.csv and return its rows."""
    rows = [describe(name) for name in available_ucr()]
    with (out / "sets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--methods", default=f"{OURS},minirocket,multirocket-hydra")
    parser.add_argument("--sets", help="names, separated by commas; default: all")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="start none later")
    parser.add_argument("--run", type=Path, default=Path("runs/ucr"), help="run folder")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--report", action="store_true", help="run nothing; print and draw")
    parser.add_argument("--published", type=Path, help="accuracies: dataset, then a column each")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.report:
        return report(options.out, OURS, options.published)
    methods = options.methods.split(",")
    if unknown := set(methods) - {OURS, *PEERS}:
        sys.exit(f"error: unknown methods {', '.join(unknown)}; known: {OURS}, {', '.join(PEERS)}")
    if set(methods) - {OURS}:
        require_aeon()
    options.run.mkdir(parents=True, exist_ok=True)
    rows = write_sets(options.out)
    chosen = options.sets.split(",") if options.sets else [row["dataset"] for row in rows]
    if unknown := set(chosen) - {row["dataset"] for row in rows}:
        sys.exit(f"error: unknown sets {', '.join(unknown)}")
    done = {(r["dataset"], r["method"], r["seed"]) for r in finished(options.run)}
    deadline = time.time() + options.budget_seconds
    # The largest first: the last ones to end are then small, and no process waits long.
    rows.sort(key=lambda row: -row["train_series"] * row["length"])
    wanted = [
        (row["dataset"], method, seed)
        for row in rows
        if row["dataset"] in chosen
        for method in methods
        for seed in map(int, options.seeds.split(","))
    ]
    tasks = []
    for key in wanted:
        name = "-".join(map(str, key))
        if key not in done:
            tasks.append(Task(name, run, (*key, options.run / f"{name}.json", deadline)))
    try:
        run_queue(tasks, jobs=options.jobs)
    finally:
        results = finished(options.run)
        write_tables(results, available_ucr(), options.out)
    done = {(r["dataset"], r["method"], r["seed"]) for r in results}
    left = [" ".join(map(str, key)) for key in wanted if key not in done]
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are there; left: {left or 'none'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
