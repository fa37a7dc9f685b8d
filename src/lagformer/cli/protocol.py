"""`lagformer forda`."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lagformer.cli.app import Json, command

if TYPE_CHECKING:
    from rich.table import Table


@command
def forda(
    data: Annotated[str, typer.Option(help="raw, dithered, fordb, or all.")] = "raw,dithered",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    preset: Annotated[str, typer.Option(help="Model preset.")] = "olympiad",
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the training set.", show_default="the preset's"),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Add MiniRocket, MultiRocket-Hydra, Hydra and QUANT (aeon's) with the first seed.",
        ),
    ] = False,
    all_peer_seeds: Annotated[
        bool,
        typer.Option("--all-peer-seeds", help="Add the peers with every seed: hours more."),
    ] = False,
    ablations: Annotated[
        bool,
        typer.Option(
            "--ablations",
            help="Add the published table's other rows, and scalar lags (validation).",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A check of about a minute, not the result.")
    ] = False,
    x_best: Annotated[
        float | None, typer.Option(help="Best macro F1, for the mark 100·(X-0.5)/(X_best-0.5).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default one in runs/ named by the settings.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Models trained at once, one thread each.", show_default="cores")
    ] = os.cpu_count() or 1,
    as_json: Json = False,
) -> None:
    """Train and score on FordA: validation split, refit on all, official test set once.

    With several seeds their models are scored together too, as an ensemble.

    The same command again resumes an interrupted run and reuses its finished models.
    """
    from lagformer.experiment import Settings, run_forda
    from lagformer.splits import VARIANTS

    try:
        numbers = tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise ValueError(f"seeds must be integers separated by commas, got {seeds!r}") from None
    names = tuple(VARIANTS) if data == "all" else tuple(data.split(","))
    settings = Settings(names, numbers, preset, epochs, ablations, quick)
    folder = out if out is not None else Path("runs") / settings.label
    peer_seeds = numbers if all_peer_seeds else numbers[:1] if peers else ()
    result = run_forda(settings, folder, jobs=jobs, peer_seeds=peer_seeds, x_best=x_best)
    if as_json:
        print(json.dumps(result))
    else:
        _print_scores(result, folder)


def _print_scores(result: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    from lagformer.baselines import BASELINES
    from lagformer.results import ENSEMBLE

    console = Console(highlight=False)
    say = functools.partial(console.print, soft_wrap=True, markup=False)
    for data in result["settings"]["data"]:
        rows = [row for row in result["rows"] if row["data"] == data]
        console.print(_score_table(data, rows))
        for row in rows:
            if row["method"] in ("lagformer", ENSEMBLE) and row["split"] == "test":
                low, high = row["accuracy_interval"]
                mark = f", mark {row['mark']:.1f}" if "mark" in row else ""
                who = "ensemble" if row["method"] == ENSEMBLE else f"seed {row['seed']}"
                say(
                    f"{who}: accuracy {row['accuracy']:.4f} ({low:.3f}–{high:.3f})"
                    f"{mark}; true {row['classes']} by predicted {row['confusion']}; "
                    f"{row['parameters']:,} parameters, {row['fit_seconds']:.0f} s to fit"
                )
        for group in result["summary"]:
            shown = group["data"] == data and group["method"] not in BASELINES
            if shown and group["seeds"] > 1:
                say(
                    f"{group['method']}, {group['seeds']} seeds: {group['split']} macro F1 "
                    f"{group['macro_f1_mean']:.4f} ± {group['macro_f1_sd']:.4f}"
                )
    for warning in result["warnings"]:
        say(f"warning: {warning}", style="yellow")
    say(f"run folder: {folder}")


def _score_table(data: str, rows: list[dict[str, Any]]) -> Table:
    """One line per method and seed: macro F1 on the validation split and on the test set."""
    from rich import box
    from rich.table import Table

    from lagformer.results import ENSEMBLE, published
    from lagformer.splits import VARIANTS

    table = Table(
        title=f"{VARIANTS[data]}, {data}: macro F1", box=box.SIMPLE, padding=(0, 1), pad_edge=False
    )
    for column in (
        "method",
        "seed",
        "validation",
        "test",
        "95 %",
        *["published"] * (data == "raw"),
    ):
        table.add_column(column, no_wrap=True)
    found = {(row["method"], row["seed"], row["split"]): row for row in rows}
    lines = dict.fromkeys((row["method"], row["seed"], row["preset"]) for row in rows)
    for method, seed, preset in lines:
        cells = [method, "all" if method == ENSEMBLE else str(seed)]
        for split in ("validation", "test"):
            row = found.get((method, seed, split))
            cells.append(f"{row['macro_f1']:.4f}" if row else "")
        cells.append("{:.3f}–{:.3f}".format(*row["macro_f1_interval"]) if row else "")
        if data == "raw":
            cells.append("/".join(f"{f1:.3f}" if f1 else "–" for f1 in published(method, preset)))
        table.add_row(*cells)
    return table
