"""The command `lagformer`: parses, calls, prints.

What takes long to import is imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from lagformer.data import Collection

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Linear-time attention with relative positions, and the time-series classifier of it.",
)
P = ParamSpec("P")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> None:
    """Run the command line; every error is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # wrong usage; none if all typer did is print help
            _fail(message)
        code = 2
    sys.exit(code)


def _fail(message: str) -> None:
    print("error:", " ".join(message.split()), file=sys.stderr)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Register a command whose errors are one line."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            _fail("interrupted; the same command again resumes what it was training")
            raise typer.Exit(130) from None
        except OSError as error:
            named = error.filename is not None
            _fail(f"{error.filename}: {error.strerror}" if named else str(error))
            raise typer.Exit(2) from None
        except ValueError as error:
            _fail(str(error))
            raise typer.Exit(2) from None

    return app.command()(guarded)


@command
def forda(
    data: Annotated[str, typer.Option(help="raw, dithered, fordb, or all.")] = "raw,dithered",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    preset: Annotated[str, typer.Option(help="Model preset.")] = "olympiad",
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 80,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Add the published table's other rows (validation).")
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

    The same command again resumes an interrupted run and reuses its finished models.
    """
    from lagformer.experiment import VARIANTS, Settings, run_forda

    try:
        numbers = tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise ValueError(f"seeds must be integers separated by commas, got {seeds!r}") from None
    names = tuple(VARIANTS) if data == "all" else tuple(data.split(","))
    settings = Settings(names, numbers, preset, epochs, ablations, quick)
    folder = out if out is not None else Path("runs") / settings.label
    result = run_forda(settings, folder, jobs=jobs, x_best=x_best)
    if as_json:
        print(json.dumps(result))
    else:
        _print_scores(result, folder)


@command
def audit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="UCR name or file.")],
    as_json: Json = False,
) -> None:
    """Look for reasons to doubt a score on this data: leaks, repeats, drift."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from lagformer.data import audit as run_audit

    report = run_audit(*_load(data))
    if as_json:
        print(report.to_json())
        return
    table = Table("check", "verdict", "score", "evidence, → cure", box=box.SIMPLE, pad_edge=False)
    for finding in report.findings:
        text = f"{finding.detail}\n→ {finding.cure}" if finding.cure else finding.detail
        table.add_row(finding.check, finding.verdict, f"{finding.score:.4g}", escape(text))
    console = Console()
    console.print(table)
    console.print(f"{report.dataset}: {report.verdict}", markup=False, highlight=False)


@command
def figures(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the figures go.")],
) -> None:
    """Draw the figures of the guide."""
    for path in importlib.import_module("lagformer.report.plots").write_figures(folder):
        print(path)


def _load(data: str) -> tuple[Collection, Collection | None]:
    """Read a file, or both splits of a UCR data set: no UCR name has a dot or a slash."""
    from lagformer.data import load_ucr, read_dataset

    if Path(data).name != data or Path(data).suffix or Path(data).exists():
        return read_dataset(Path(data)), None
    return load_ucr(data)


def _print_scores(result: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    say = functools.partial(console.print, soft_wrap=True, markup=False)
    for data in result["settings"]["data"]:
        rows = [row for row in result["rows"] if row["data"] == data]
        console.print(_score_table(data, rows))
        for row in rows:
            if row["method"] == "lagformer" and row["split"] == "test":
                low, high = row["accuracy_interval"]
                mark = f", mark {row['mark']:.1f}" if "mark" in row else ""
                say(
                    f"seed {row['seed']}: accuracy {row['accuracy']:.4f} ({low:.3f}–{high:.3f})"
                    f"{mark}; true {row['classes']} by predicted {row['confusion']}; "
                    f"{row['parameters']:,} parameters, {row['fit_seconds']:.0f} s to fit"
                )
        for group in result["summary"]:
            if (group["data"], group["method"]) == (data, "lagformer") and group["seeds"] > 1:
                say(
                    f"{group['seeds']} seeds: {group['split']} macro F1 "
                    f"{group['macro_f1_mean']:.4f} ± {group['macro_f1_sd']:.4f}"
                )
    for warning in result["warnings"]:
        say(f"warning: {warning}", style="yellow")
    say(f"run folder: {folder}")


def _score_table(data: str, rows: list[dict[str, Any]]) -> Table:
    """One line per method and seed: macro F1 on the validation split and on the test set."""
    from rich import box
    from rich.table import Table

    from lagformer.experiment import VARIANTS
    from lagformer.results import PUBLISHED

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
    for method, seed in dict.fromkeys((row["method"], row["seed"]) for row in rows):
        cells = [method, str(seed)]
        for split in ("validation", "test"):
            row = found.get((method, seed, split))
            cells.append(f"{row['macro_f1']:.4f}" if row else "")
        cells.append("{:.3f}–{:.3f}".format(*row["macro_f1_interval"]) if row else "")
        if data == "raw":
            cells.append("/".join(f"{f1:.3f}" if f1 else "–" for f1 in PUBLISHED[method]))
        table.add_row(*cells)
    return table
