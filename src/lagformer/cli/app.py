"""The frame of every command: errors are one line, and the arguments that several share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, ParamSpec

import typer

if TYPE_CHECKING:
    from lagformer.data import Collection

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Linear-time attention with relative positions, and the time-series classifier of it.",
)
P = ParamSpec("P")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Data = Annotated[
    str, typer.Argument(metavar="DATA", help="UCR name, NAME:train, NAME:test or file.")
]
Missing = Annotated[
    Literal["error", "mask", "interpolate"], typer.Option(help="What to do with missing values.")
]
Label = Annotated[
    str | None, typer.Option(help="Name or position of the label column (.csv, .parquet).")
]


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
        except BrokenPipeError:  # the reader has seen enough, as `head` has
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except OSError as error:
            named = error.filename is not None
            _fail(f"{error.filename}: {error.strerror}" if named else str(error))
            raise typer.Exit(2) from None
        except ValueError as error:
            _fail(str(error))
            raise typer.Exit(2) from None

    return app.command()(guarded)


def load(data: str, split: str, missing: str = "mask", label: str | None = None) -> Collection:
    """Read a file, or a split of a UCR data set: that of `NAME:split`, or `split`."""
    from lagformer.data import load_ucr, read_dataset

    if is_file(data):
        return read_dataset(Path(data), missing=missing, label=_column(label))  # type: ignore[arg-type]
    if label is not None:
        raise ValueError("--label is for .csv and .parquet files alone")
    name, colon, wanted = data.partition(":")
    if colon and wanted not in ("train", "test"):
        raise ValueError(f"{data!r} names neither split: write {name}:train or {name}:test")
    train, test = load_ucr(name, missing=missing)  # type: ignore[arg-type]
    return train if (wanted or split) == "train" else test


def load_pieces(
    data: str, split: str, missing: str = "mask", label: str | None = None
) -> Iterator[Collection]:
    """Read what `load` does, piece by piece where the format allows it."""
    from lagformer.data.readers import iter_dataset

    if is_file(data):
        yield from iter_dataset(Path(data), missing=missing, label=_column(label))  # type: ignore[arg-type]
    else:
        yield load(data, split, missing, label)


def _column(label: str | None) -> str | int | None:
    return int(label) if label is not None and label.lstrip("-").isdigit() else label


def is_file(data: str) -> bool:
    """Whether DATA means a file: no name of a UCR data set has a dot or a slash."""
    return Path(data).name != data or bool(Path(data).suffix) or Path(data).exists()
