"""`lagformer audit` and `lagformer figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagformer.cli.app import Data, Json, command, is_file, load


@command
def audit(data: Data, as_json: Json = False) -> None:
    """Look for reasons to doubt a score on this data: leaks, repeats, drift.

    The name of a UCR set means both its splits; NAME:train, NAME:test or a file is audited alone.
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from lagformer.data import audit as run_audit
    from lagformer.data import load_ucr

    alone = is_file(data) or ":" in data
    splits = (load(data, "train"), None) if alone else load_ucr(data)
    report = run_audit(*splits)
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
    run: Annotated[
        Path | None, typer.Option(help="Run folder of `lagformer forda`, for its learned lags.")
    ] = None,
) -> None:
    """Draw the figures of the guide."""
    from lagformer.report.plots import write_figures

    for path in write_figures(folder, run=run):
        print(path)
