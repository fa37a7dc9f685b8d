"""Feature maps: how far from softmax attention, and at what cost.

python benchmarks/feature_maps.py

Errors, in float64, over DRAWS draws of q, k ~ N(0, scale²) and v ~ N(0, 1), ROWS rows each, from
one seed. With softmax weights s_ij = softmax(q_iᵀk_j/√d) and a map's weights a_ij, which sum to 1
over j as well:

    weight error    mean over i of ½ Σ_j |a_ij - s_ij|: the share of the weight on the wrong keys
    output error    ‖aV - sV‖ / ‖sV‖

Maps are given q and k as they are, as the attention functions do; ``favor+`` estimates exp(qᵀk) and
is given q/d^¼ and k/d^¼. ``hedgehog`` is untrained. ``equal weights`` attends to every key alike.

Times, in float32 on one thread, without gradients: mapping 1,000 rows, and linear_attention over
1,000 positions. The maps take turns, round after round; a round's time is the quickest of CALLS
calls, and the median over the rounds is compared with that of elu+1. Freed memory stays with the
process: else the pages a result lies on are made anew or not as the heap happens to lie.

Writes feature_maps.csv and feature_maps.png, and prints the table of docs/feature_maps.md.
"""

from __future__ import annotations

import csv
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from lagformer.attention import FeatureMap, feature_map, feature_map_names, linear_attention

RESULTS = Path(__file__).parent / "results"
DIMS = (4, 16, 64)
SCALES = (0.25, 0.5, 1.0, 2.0)
ROWS, DRAWS, ROUNDS, CALLS = 256, 5, 15, 10
EQUAL = "equal weights"
COLUMNS = ["map", "dim", "num_features", "strictly_positive"]
COLUMNS += [f"{what}_error_{scale:g}" for what in ("weight", "output") for scale in SCALES]
COLUMNS += ["map_us_per_1000_rows", "map_over_elu+1", "attention_over_elu+1"]


def build(name: str, dim: int, draw: int) -> FeatureMap:
    """A map in float64; a random one is drawn anew for every draw."""
    options = {"generator": torch.Generator().manual_seed(draw)} if name == "favor+" else {}
    return feature_map(name, dim, **options).double().requires_grad_(False)


def weights(name: str, q: Tensor, k: Tensor, draw: int) -> Tensor:
    """Attention weights a_ij, (ROWS, ROWS)."""
    if name == EQUAL:
        return torch.full((len(q), len(k)), 1 / len(k), dtype=q.dtype)
    phi, d = build(name, q.shape[-1], draw), q.shape[-1]
    if name == "favor+":
        q, k = q / d**0.25, k / d**0.25
    kernel = phi.query(q) @ phi(k).T
    total = kernel.sum(-1, keepdim=True)
    return kernel / total.masked_fill(total == 0, 1)  # a row without weight gives zeros


def errors(name: str, dim: int, scale: float) -> tuple[float, float]:
    """Weight error and output error, the means over the draws."""
    found = []
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        q, k, v = (torch.randn(ROWS, dim, generator=generator).double() for _ in range(3))
        q, k = scale * q, scale * k
        exact = (q @ k.T / dim**0.5).softmax(-1)
        off = weights(name, q, k, draw) - exact
        output = (off @ v).norm() / (exact @ v).norm()
        found.append((float(off.abs().sum(-1).mean() / 2), float(output)))
    weight, output_error = (fmean(column) for column in zip(*found, strict=True))
    return weight, output_error


def times(dim: int) -> dict[str, tuple[float, float]]:
    """Seconds to map 1,000 rows and to attend over 1,000 positions, median over the rounds."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 1000, dim, generator=generator) for _ in range(3))
    maps = {name: feature_map(name, dim) for name in feature_map_names()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in maps}
    with torch.inference_mode():
        for _ in range(ROUNDS + 1):
            for name, phi in maps.items():
                mapping = seconds(lambda phi=phi: phi(q))
                attending = seconds(lambda phi=phi: linear_attention(q, k, v, feature_map=phi))
                taken[name].append((mapping, attending))
    # the first round warms up
    return {
        name: (median(t[0] for t in rounds[1:]), median(t[1] for t in rounds[1:]))
        for name, rounds in taken.items()
    }


def seconds(run: Callable[[], Tensor]) -> float:
    """The quickest of a few calls: the others were interrupted."""
    best = float("inf")
    for _ in range(CALLS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def measure() -> list[dict[str, Any]]:
    """One row per map and width."""
    rows = []
    for dim in DIMS:
        taken = times(dim)
        for name in (*feature_map_names(), EQUAL):
            row: dict[str, Any] = {"map": name, "dim": dim}
            for scale in SCALES:
                weight, output = errors(name, dim, scale)
                row[f"weight_error_{scale:g}"] = f"{weight:.2g}"
                row[f"output_error_{scale:g}"] = f"{output:.2g}"
            if name in taken:
                phi = feature_map(name, dim)
                row |= {"num_features": phi.num_features}
                row |= {"strictly_positive": phi.strictly_positive}
                mapping, attending = taken[name]
                row["map_us_per_1000_rows"] = f"{mapping * 1e6:.3g}"
                row["map_over_elu+1"] = f"{mapping / taken['elu+1'][0]:.2g}"
                row["attention_over_elu+1"] = f"{attending / taken['elu+1'][1]:.2g}"
            rows.append(row)
    return rows


def table(rows: list[dict[str, str]], dim: int) -> str:
    """The Markdown table of one width, from rows of the CSV."""
    columns = {"map": "map", "features": "num_features"}
    columns |= {f"weight, {s:g}": f"weight_error_{s:g}" for s in SCALES}
    columns |= {f"output, {s:g}": f"output_error_{s:g}" for s in (0.5, 1)}
    columns |= {"mapping": "map_over_elu+1", "attention": "attention_over_elu+1"}
    lines = [[*columns], ["---"] + ["---:"] * (len(columns) - 1)]
    for row in rows:
        if row["dim"] == str(dim):
            name = row["map"] if row["map"] == EQUAL else f"`{row['map']}`"
            lines.append([name, *(row[c] or "–" for c in [*columns.values()][1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Okabe & Ito 2008: told apart by colour-blind eyes; the markers tell them apart in grey.
STYLES = {
    "elu+1": ("#0072B2", "o"),
    "relu": ("#56B4E9", "s"),
    "squared_relu": ("#CC79A7", "v"),
    "exp": ("#E69F00", "^"),
    "taylor2": ("#009E73", "D"),
    "favor+": ("#D55E00", "X"),
    "hedgehog": ("#000000", "P"),
}


def plot(rows: list[dict[str, str]], file: Path, dim: int = 16) -> None:
    """Weight error against scale, and time of attention against features, for one width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    chosen = {row["map"]: row for row in rows if row["dim"] == str(dim)}

    def curve(name: str) -> list[float]:
        return [float(chosen[name][f"weight_error_{s:g}"]) for s in SCALES]

    left.loglog(SCALES, curve(EQUAL), "--", color="0.5", label=EQUAL)
    for name, (colour, marker) in STYLES.items():
        label = "taylor2, taylor2_full" if name == "taylor2" else name
        left.loglog(SCALES, curve(name), marker=marker, color=colour, label=label)
    left.set_xticks(SCALES, [f"{s:g}" for s in SCALES])
    left.minorticks_off()
    left.set_title("Share of the weight on the wrong keys", fontsize=11)
    left.set_xlabel("standard deviation of the components of q and k")
    left.set_ylabel("½ Σ |a − softmax|, mean over queries")
    left.legend(frameon=False, fontsize=8, loc="lower right")
    names = [n for n in chosen if n != EQUAL][::-1]
    values = [float(chosen[n]["attention_over_elu+1"]) for n in names]
    colours = [STYLES[n.removesuffix("_full")][0] for n in names]
    right.barh(names, values, color=colours, height=0.65)
    for y, (name, value) in enumerate(zip(names, values, strict=True)):
        text = f" ×{value:g}, {chosen[name]['num_features']} features"
        right.text(value, y, text, va="center", fontsize=8)
    right.set_xlim(0, 1.75 * max(values))
    right.set_title("Time of attention, T = 1,000", fontsize=11)
    right.set_xlabel("over the time with elu+1")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    left.grid(alpha=0.25)
    figure.suptitle(f"Feature maps beside softmax attention, head width {dim}")
    figure.savefig(file, dpi=130, metadata={"Software": None})


def keep_freed_memory() -> None:
    """Tell glibc's malloc neither to trim the heap nor to map large blocks one by one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-4, 0)  # M_MMAP_MAX


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    path = RESULTS / "feature_maps.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(measure())
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    plot(rows, path.with_suffix(".png"))
    for dim in DIMS:
        print(f"d = {dim}\n\n{table(rows, dim)}\n")
    print(f"written: {path}, {path.with_suffix('.png')}")


if __name__ == "__main__":
    main()
