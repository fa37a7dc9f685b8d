"""What `ucr.py --report` prints and draws from the tables it wrote."""

from __future__ import annotations

import csv
import math
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lagformer.report.style import BLUE, GREY, new_figure, save

Accuracies = dict[str, float]  # by data set


def report(folder: Path, ours: str, published: Path | None) -> int:
    """Print mean accuracies on the regular sets; draw scatter plots and critical differences.

    Published figures go to plots of their own, `*_published.png`.
    """
    methods = {
        path.name.removesuffix("_accuracy.csv"): mean_over_seeds(path)
        for path in sorted(folder.glob("*_accuracy.csv"))
    }
    if ours not in methods:
        print(f"error: {folder} holds no {ours}_accuracy.csv; run the benchmark first")
        return 2
    regular = regular_sets(folder / "sets.csv")
    print(f"{len(regular)} sets are regular")
    groups = {"": methods}
    if published is not None:
        groups["_published"] = {ours: methods[ours]} | {
            f"{name} (published)": figures for name, figures in read_published(published).items()
        }
    for suffix, group in groups.items():
        common = [name for name in regular if all(name in a for a in group.values())]
        print(f"mean accuracy on the {len(common)} regular sets that all of these have:")
        for name, accuracies in group.items():
            print(f"  {name:28s} {np.mean([accuracies[n] for n in common]):.4f}")
        others = [name for name in group if name != ours]
        if others and common:
            save(scatter(group, ours, others, common), folder / f"scatter{suffix}.png")
        if not find_spec("aeon"):
            print("no critical differences without aeon: pip install 'lagformer[aeon]'")
        elif len(group) > 2 and len(common) > 2:
            save(critical_differences(group, common), folder / f"critical_difference{suffix}.png")
    return 0


def regular_sets(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row["dataset"] for row in csv.DictReader(file) if row["regular"] == "True"]


def mean_over_seeds(path: Path) -> Accuracies:
    """Return the mean accuracy of every set that has a figure for each seed."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return {name: float(np.mean([float(c) for c in cells])) for name, *cells in rows if all(cells)}


def read_published(path: Path) -> dict[str, Accuracies]:
    """Read a table of accuracies: a row per set, a column per method, empty cells for none."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    methods = [column for column in rows[0] if column != "dataset"]
    return {m: {row["dataset"]: float(row[m]) for row in rows if row[m]} for m in methods}


def scatter(group: dict[str, Accuracies], ours: str, others: list[str], sets: list[str]) -> Figure:
    columns = min(3, len(others))
    rows = math.ceil(len(others) / columns)
    figure, panels = new_figure(
        "Accuracy on UCR data sets",
        f"One point per regular set ({len(sets)}); above the line {ours} is more accurate.",
        columns=columns,
        rows=rows,
        height=0.8 + rows * 7 / columns,
    )
    y = np.array([group[ours][name] for name in sets])
    low = min(min(group[name][s] for s in sets) for name in group)
    for panel, name in zip(panels, others, strict=False):
        x = np.array([group[name][s] for s in sets])
        panel.plot([low, 1], [low, 1], color=GREY, linewidth=0.8)
        panel.scatter(x, y, s=12, color=BLUE)
        panel.set_title(f"better {(y > x).sum()}, equal {(y == x).sum()}, worse {(y < x).sum()}")
        panel.title.set_fontsize(9)
        panel.set_xlabel(name, fontsize=9)
        panel.set_ylabel(ours, fontsize=9)
        panel.set_aspect("equal")
    for panel in panels[len(others) :]:
        panel.set_visible(False)
    return figure


def critical_differences(group: dict[str, Accuracies], sets: list[str]) -> Figure:
    """Mean ranks, and bars over methods that do not differ (Wilcoxon-Holm at 0.05)."""
    import matplotlib.pyplot as plt
    from aeon.visualisation import plot_critical_difference

    plt.switch_backend("agg")
    table = np.array([[group[name][s] for name in group] for s in sets])
    room = 0.5 + 0.16 * max(map(len, group))  # inches beside the axis, for names of 16 points
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, about equal accuracies
        figure, _ = plot_critical_difference(
            table, list(group), alpha=0.05, width=4 + 2 * room, textspace=room
        )
    plt.close(figure)
    return figure
