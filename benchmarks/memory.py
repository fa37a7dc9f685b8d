"""Resident memory while predict and scan go through a million windows.

Each case runs the command, or the call, in a process of its own that notes its resident memory at
every percent of the windows. What counts is the growth from 10 % on, when everything that is made
once is there. The network is tiny: memory that grows would grow with the windows, not with it.

python benchmarks/memory.py [--windows 1000000] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lagformer import Lagformer, LagformerClassifier, cli

RESULTS = Path(__file__).parent / "results"
LENGTH = 32
PIPE_SHARE = 100
"""Through a pipe every window is answered by itself, which takes its time: so many times fewer."""

Sample = tuple[float, float]  # share of the windows, MiB


def tiny() -> LagformerClassifier:
    """The olympiad recipe's network with one narrow block, hardly trained."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = np.sin((0.4 + 0.8 * y[:, None]) * np.arange(LENGTH) + 6 * rng.random((40, 1)))
    model = LagformerClassifier("olympiad", max_epochs=1, random_state=0).fit(X, y)
    sizes = {"embed_dim": 8, "num_heads": 1, "head_dim": 8, "num_blocks": 1, "mlp_dim": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.model_ = Lagformer(replace(model.model_.config, **sizes)).eval()
    return model


def resident() -> float:
    """Resident memory of this process in MiB (Linux)."""
    status = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def watched(windows: int, work: Callable[[], Any]) -> list[Sample]:
    """Do the work and note memory with every percent of the windows that the network has seen."""
    samples: list[Sample] = []
    done = 0

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: Any) -> None:
        nonlocal done
        if isinstance(module, Lagformer):
            done += len(inputs[0])
            if done * 100 >= windows * len(samples) or done == windows:
                samples.append((done / windows, resident()))

    handle = nn.modules.module.register_module_forward_hook(hook)
    work()
    handle.remove()
    samples.append((1.0, resident()))  # with the results
    return samples


def command(*arguments: object) -> None:
    sys.argv = ["lagformer", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise


def _predict_array(folder: Path) -> Any:
    return LagformerClassifier.load(folder / "model").predict(np.load(folder / "series.npy"))


CASES: dict[str, Callable[[Path], Any]] = {
    "predict, array in memory": _predict_array,
    "predict, .npy": lambda f: command(
        "predict", f / "model", f / "series.npy", "--out", f / "labels.csv"
    ),
    "scan, .csv": lambda f: command("scan", f / "model", f / "recording.csv", "--hop", 1),
    "scan, standard input": lambda f: command("scan", f / "model", "-", "--hop", 1),
    "scan, pipe": lambda f: command("scan", f / "model", "-", "--hop", 1),
}


def measure(case: str, folder: Path, windows: int) -> list[Sample]:
    """Run a case in a process of its own."""
    pipe = case.endswith("pipe")
    with (folder / ("short.csv" if pipe else "recording.csv")).open("rb") as recording:
        done = subprocess.run(
            [sys.executable, __file__, "--case", case, "--in", folder, "--windows", str(windows)],
            input=recording.read() if pipe else None,
            stdin=None if pipe else recording,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    assert done.returncode == 0
    samples: list[Sample] = json.loads((folder / "samples.json").read_text("utf-8"))
    return samples


def write_inputs(folder: Path, windows: int) -> None:
    rng = np.random.default_rng(1)
    tiny().save(folder / "model")
    np.save(folder / "series.npy", rng.standard_normal((windows, LENGTH)))
    for name, n in (("recording.csv", windows), ("short.csv", windows // PIPE_SHARE)):
        with (folder / name).open("w", encoding="ascii") as file:
            file.write("x\n")
            file.writelines(f"{x:.3f}\n" for x in rng.standard_normal(n + LENGTH - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case:
        work, folder = CASES[arguments.case], arguments.folder
        samples = watched(arguments.windows, lambda: work(folder))
        (folder / "samples.json").write_text(json.dumps(samples), "utf-8")
        return
    found: dict[str, tuple[int, list[Sample]]] = {}
    with tempfile.TemporaryDirectory() as name:
        write_inputs(Path(name), arguments.windows)
        for case in CASES:
            windows = arguments.windows // (PIPE_SHARE if case.endswith("pipe") else 1)
            found[case] = windows, measure(case, Path(name), windows)
            print(f"{case}: {windows:,} windows, {growth(found[case][1])}", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "memory.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "windows", "share_done", "resident_mib"])
        for case, (windows, samples) in found.items():
            writer.writerows([case, windows, f"{d:.3f}", f"{m:.1f}"] for d, m in samples)
    draw({case: samples for case, (_, samples) in found.items()}, arguments.out / "memory.png")


def growth(samples: list[Sample]) -> str:
    """What memory does from 10 % on."""
    late = [memory for done, memory in samples if done >= 0.1]
    return f"{late[0]:.1f} MiB at 10 %, {late[-1]:.1f} at the end, {max(late):.1f} at most"


def draw(found: dict[str, list[Sample]], path: Path) -> None:
    from lagformer.report.style import (
        BLACK,
        BLUE,
        GREEN,
        ORANGE,
        RED,
        legend_below,
        new_figure,
        save,
    )

    figure, (axes,) = new_figure(
        "Resident memory while a model predicts",
        "Windows of 32 samples. Lines of equal height lie on each other: wide ones first.",
    )
    looks = zip((ORANGE, BLUE, GREEN, RED, BLACK), (2, 9, 6, 3.5, 1), strict=True)
    for (case, samples), (colour, width) in zip(found.items(), looks, strict=True):
        done, memory = zip(*samples, strict=True)
        axes.plot(100 * np.array(done), memory, color=colour, linewidth=width, label=case)
    axes.set(xlabel="windows done (%)", ylabel="resident memory (MiB)", ylim=(0, None))
    legend_below(axes, ncols=3)
    save(figure, path)


if __name__ == "__main__":
    main()
