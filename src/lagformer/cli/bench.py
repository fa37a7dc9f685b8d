"""`lagformer bench`: the comparisons under benchmarks/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from lagformer.cli.app import command

# The benchmarks stay out of the installed package: they belong to a checkout.
FOLDER = Path(__file__).parents[3] / "benchmarks"


@command
def bench(
    what: Annotated[Literal["attention"], typer.Argument(help="What to measure.")],
    sections: Annotated[
        str | None, typer.Option(help="Some of its sections, by comma: relative,plain,causal,…")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
    seconds: Annotated[float, typer.Option(help="For each comparison.", min=0.1)] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder for the CSV and the plot.")] = None,
) -> None:
    """Measure time and memory against other implementations, in one run; write CSV and plot."""
    script = FOLDER / f"{what}.py"
    if not script.exists():
        raise ValueError(
            "the benchmarks are not part of the installed package: run this in a checkout of the "
            "repository, installed with `make install`"
        )
    arguments = ["--device", device, "--seconds", str(seconds)]
    arguments += ["--sections", sections] if sections else []
    arguments += ["--out", str(out)] if out else []
    done = subprocess.run([sys.executable, str(script), *arguments])
    if done.returncode:
        raise typer.Exit(2)
