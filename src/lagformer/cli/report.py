"""`lagformer report`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lagformer.cli.app import Json, Label, Missing, command, load


@command
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a saved model or of `lagformer forda`.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled data to score on; for a run raw, dithered or fordb.",
            show_default="the test split it belongs to",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="HTML", help="The page.", show_default="RUN.html")
    ] = None,
    label: Label = None,
    missing: Missing = "mask",
    as_json: Json = False,
) -> None:
    """Write one page about a trained model: its score, its errors, what it looked at, the audit."""
    import torch

    from lagformer.report.page import report as make
    from lagformer.report.page import write_page
    from lagformer.report.subject import is_run, open_model, open_run

    torch.set_num_threads(1)  # as it was trained: the same predictions on any number of cores
    path = run if out is None else out
    page = path if out is not None else path.with_name(f"{path.absolute().name}.html")
    if is_run(run):
        subject = open_run(run, data)
    else:
        scored = None if data is None else load(data, "test", missing, label)
        subject = open_model(run, scored)
    found = make(subject, command=shlex.join(["lagformer", *sys.argv[1:]]))
    write_page(found.html, page)
    size = page.stat().st_size
    if as_json:
        print(json.dumps({"page": str(page), "bytes": size, **found.as_dict()}))
        return
    for line in found.lines():
        print(line)
    print(f"{page}: {size / 1000:.0f} kB")
