"""`lagformer export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lagformer.cli.app import Json, command, load
from lagformer.cli.models import Model


@command
def export(
    model: Model,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file: .onnx or .pt2.")],
    length: Annotated[
        int | None, typer.Option(help="Samples of a series.", show_default="as in training")
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="DATA", help="Compare on these series too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model as one file for other runtimes, if it gives the same numbers there."""
    from lagformer import LagformerClassifier
    from lagformer.export import export_classifier

    classifier = LagformerClassifier.load(model)
    series = None if check is None else load(check, "test")
    result = export_classifier(classifier, out, length=length, series=series)
    shape = ["batch", classifier.model_.config.in_channels, result.length]
    if as_json:
        content = {"file": str(out), "series": shape, "classes": classifier.classes_.tolist()}
        print(json.dumps(content | {"checked": result.checked, "difference": result.difference}))
        return
    print(
        f"{out}: series ({', '.join(map(str, shape))}) in float32 → probabilities of "
        f"{', '.join(map(str, classifier.classes_.tolist()))}"
    )
    print(f"compared on {result.checked} series: the largest difference is {result.difference:.1e}")
