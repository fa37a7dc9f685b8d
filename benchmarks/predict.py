"""Series per second of predict on FordA, one core, beside aeon's MiniRocket and Hydra.

Every method is fitted on the same training series (how many does not change what predict costs).
All run on one thread, in turns, and what counts is the processor's time, so that the ratios hold
on a busy machine too.

python benchmarks/predict.py [--rounds 5] [--out CSV]
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from lagformer import LagformerClassifier
from lagformer.data import load_ucr

RESULTS = Path(__file__).parent / "results" / "predict.csv"
TRAIN_SERIES = 500
TEST_SERIES = 440


def peers() -> dict[str, Any]:
    """Return aeon's classifiers, none if it is not installed."""
    try:
        from aeon.classification.convolution_based import HydraClassifier, MiniRocketClassifier
    except ImportError:
        print("aeon is not installed: lagformer alone (pip install 'lagformer[aeon]')")
        return {}
    return {
        "aeon MiniRocket": MiniRocketClassifier(random_state=0, n_jobs=1),
        "aeon Hydra": HydraClassifier(random_state=0, n_jobs=1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, test = load_ucr("FordA")
    X, unseen = train.values[:TRAIN_SERIES], test.values[:TEST_SERIES]
    assert train.labels is not None
    methods: dict[str, Any] = {
        f"lagformer {preset}": LagformerClassifier(preset, max_epochs=1, random_state=0)
        for preset in ("fast", "base", "olympiad")
    } | peers()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    with threadpool_limits(1):
        for method in methods.values():
            method.fit(X, train.labels[:TRAIN_SERIES])
            method.predict(unseen[:30])  # compile and allocate what is done once
        for _ in range(arguments.rounds):
            for name, method in methods.items():
                began = time.process_time()
                method.predict(unseen)
                seconds[name].append(time.process_time() - began)
    reference = seconds.get("aeon MiniRocket")
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "series_per_second", "times_minirocket"])
        for name, taken in seconds.items():
            # Each round's ratio by itself: a full cache slows neighbours alike.
            ratio = float(np.median(np.divide(reference, taken))) if reference else float("nan")
            row = [name, round(len(unseen) / float(np.median(taken))), round(ratio, 2)]
            writer.writerow(row)
            print(*row, sep="\t")


if __name__ == "__main__":
    main()
