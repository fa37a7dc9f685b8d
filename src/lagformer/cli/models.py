"""`lagformer train`, `evaluate`, `predict` and `scan`."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from lagformer.cli.app import Data, Json, Label, Missing, command, is_file, load, load_pieces

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")]


@command
def train(
    data: Data,
    out: Annotated[Path, typer.Option(metavar="MODEL", help="Folder to save the model as.")],
    label: Label = None,
    missing: Missing = "mask",
    preset: Annotated[str, typer.Option(help="base, fast or olympiad.")] = "base",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", show_default="by its size")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Series per step at most.")] = 64,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak of the schedule.", show_default="0.001")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share held out to choose the best epoch.", show_default="0.1, if many"),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="End after so many epochs without progress.")
    ] = None,
    class_weight: Annotated[
        Literal["balanced"] | None, typer.Option(help="Make rare classes count as much.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale each series by its own mean and deviation.")
    ] = False,
    shift: Annotated[
        bool, typer.Option(help="Rotate training series: for windows cut at any moment.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal models.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train a classifier and save it; the training split of a UCR data set by default.

    The same command again resumes an interrupted training (its checkpoint is in MODEL.partial).
    """
    import torch

    from lagformer import LagformerClassifier
    from lagformer.saving import check_target
    from lagformer.training.lock import alone_in

    check_target(out)  # before hours of work
    torch.set_num_threads(1)  # as quick for such batches, and the same bits on any number of cores
    series = load(data, "train", missing, label)
    working = out.absolute().with_name(f"{out.absolute().name}.partial")
    model = LagformerClassifier(
        preset,
        max_epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        validation_fraction=validation,
        patience=patience,
        class_weight=class_weight,
        normalize=normalize,
        shift=shift,
        missing=missing,
        random_state=seed,
        device=device,
        verbose=int(sys.stderr.isatty()),
        checkpoint_dir=working,
    )
    with alone_in(working):
        model.fit(series)
        model.save(out)
        shutil.rmtree(working)
    result = {
        "model": str(out),
        "data": series.source,
        "series": len(series),
        "classes": model.classes_.tolist(),
        "parameters": model.model_.num_parameters,
        "epochs": len(model.history_),
        "seconds": sum(record["seconds"] for record in model.history_),
        "validation_macro_f1": max(
            (r["validation_macro_f1"] for r in model.history_ if "validation_macro_f1" in r),
            default=None,
        ),
        "stopped": model.history_[-1].get("stopped"),
    }
    if as_json:
        print(json.dumps(result))
        return
    print(
        f"{out}: {result['series']} series of {len(model.classes_)} classes, "
        f"{result['parameters']:,} parameters, {result['epochs']} epochs, "
        f"{result['seconds']:.0f} s"
    )
    if result["stopped"] is not None:
        print(f"stopped early: {result['stopped']}")
    if result["validation_macro_f1"] is not None:
        print(f"validation macro F1 of the best epoch: {result['validation_macro_f1']:.4f}")


@command
def evaluate(
    model: Model, data: Data, label: Label = None, missing: Missing = "mask", as_json: Json = False
) -> None:
    """Score a model on labelled data; the test split of a UCR data set by default."""
    from lagformer import LagformerClassifier
    from lagformer.evaluation import evaluate as run

    series = load(data, "test", missing, label)
    result = run(LagformerClassifier.load(model), series)
    score = result.score
    if as_json:
        content = {"data": series.source, "series": result.series}
        print(json.dumps(content | {"seen_in_training": result.seen_in_training} | asdict(score)))
        return
    for name, value, (low, high) in (
        ("macro F1", score.macro_f1, score.macro_f1_interval),
        ("accuracy", score.accuracy, score.accuracy_interval),
    ):
        print(f"{name} {value:.4f} (95 %: {low:.3f}–{high:.3f})")
    if result.seen_in_training:
        print(
            f"warning: {result.seen_in_training} of {result.series} series were in training too: "
            "they flatter the score"
        )
    _print_confusion(score.classes, score.confusion)


def _print_confusion(classes: list[object], confusion: list[list[int]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("true, by predicted:", box=box.SIMPLE, pad_edge=False)
    for name in classes:
        table.add_column(escape(str(name)), justify="right", no_wrap=True)
    for name, row in zip(classes, confusion, strict=True):
        table.add_row(escape(str(name)), *map(str, row))
    # A table of many classes is wider than a screen: wrapped, it would be no table.
    Console(width=max(80, Console().measure(table).maximum), highlight=False).print(table)


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option(metavar="CSV", help="File for the table.", show_default="stdout")
    ] = None,
    label: Label = None,
    missing: Missing = "mask",
    as_json: Json = False,
) -> None:
    """Label series; the test split of a UCR data set by default. Labels in DATA are not read."""
    from lagformer import LagformerClassifier
    from lagformer.evaluation import write_predictions
    from lagformer.saving import replacing

    classifier = LagformerClassifier.load(model)
    pieces = load_pieces(data, "test", missing, label)
    as_table = nullcontext(None if as_json else sys.stdout) if out is None else replacing(out)
    with as_table as table:
        json_file = sys.stdout if as_json else None
        write_predictions(classifier, pieces, table=table, as_json=json_file)


@command
def scan(
    model: Model,
    recording: Annotated[
        str, typer.Argument(metavar="RECORDING", help=".wav, .flac or .csv; - is standard input.")
    ],
    window: Annotated[
        int | None, typer.Option(help="Samples in a window.", show_default="as in training")
    ] = None,
    hop: Annotated[
        int | None, typer.Option(help="Samples between starts.", show_default="window")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Samples per second.", show_default="the file's")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw label and probability over time (.png, .svg, .html).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Slide a model over a long recording: one line per window, as soon as it is complete."""
    from lagformer import LagformerClassifier
    from lagformer.scan import plot_timeline
    from lagformer.scan import scan as run

    if recording != "-" and not is_file(recording):
        raise ValueError(
            f"{recording!r} is no recording: give a .wav, .flac or .csv file or -; the series of "
            "a UCR data set are for `lagformer predict`"
        )
    seen = []
    interrupted = False
    try:
        for found in run(
            LagformerClassifier.load(model), recording, window=window, hop=hop, rate=rate
        ):
            if as_json:
                line = json.dumps(
                    {
                        "start": found.start,
                        "time": found.time,
                        "class": found.label,
                        "probability": found.probability,
                    }
                )
            else:
                time = "" if found.time is None else f" {found.time:10.3f} s"
                line = f"{found.start:10d}{time}  {found.probability:.3f}  {found.label}"
            print(line, flush=True)
            if plot is not None:
                seen.append(found)
    except KeyboardInterrupt:  # the usual end of a live scan
        interrupted = True
    if plot is not None and plot.suffix == ".html":
        from lagformer.report.timeline import write_timeline

        write_timeline(seen, plot, recording=recording, model=model.name, interrupted=interrupted)
    elif plot is not None:
        plot_timeline(seen, plot)
    if interrupted:
        raise typer.Exit(130)
