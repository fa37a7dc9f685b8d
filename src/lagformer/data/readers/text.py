"""What the line-based formats share: lines with their numbers, numbers, labels, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Line = tuple[int, str]

# Beyond it float64 no longer tells neighbouring whole numbers apart.
LARGEST_WHOLE = 2**53

_MISSING_VALUES = frozenset({"?", "na", "n/a", "nan", "null", "none"})
_MISSING_LABELS = frozenset({"", "?", "nan"})
# A leading zero ("007") marks a code, not a number.
_WHOLE_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)


class ReadError(ValueError):
    """A reading error that already names its file and line."""


@dataclass(frozen=True)
class Place:
    """A file and a line in it (counted from 1), or the file alone."""

    file: str
    line: int | None = None

    def error(self, message: str) -> ReadError:
        """Return the one-line error that names this place; what a file says may hold anything."""
        message = "".join(char if char.isprintable() else "?" for char in message)
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return ReadError(f"{where}: {message}")


@dataclass
class Raw:
    """What a reader found in a file, before validation."""

    series: Any
    """Whatever ``Collection.from_arrays`` takes as X."""
    labels: NDArray[Any] | None = None
    names: Sequence[str] | None = None
    lines: Sequence[int] | None = None
    """The line of each series, in formats that have lines."""
    first: int = 0
    """The place of the first series in its file, if this is a piece of one."""


def lines_of(path: Path, comment: str = "#") -> Iterator[Line]:
    """Yield the lines of a text file with their numbers; see :func:`clean_lines`."""
    # Bytes that are no UTF-8 become lone surrogates, so that clean_lines can name their line.
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        yield from clean_lines(file, str(path), comment)


def clean_lines(lines: Iterable[str], file: str, comment: str = "#") -> Iterator[Line]:
    """Yield (number, line) without line ends, skipping blank lines and whole-line comments."""
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n").removeprefix("\ufeff")  # the mark Windows puts first
        if not line.strip() or line.lstrip().startswith(comment):
            continue
        if not line.isascii() and any("\ud800" <= char <= "\udfff" for char in line):
            raise Place(file, number).error("not valid UTF-8. Save the file as UTF-8.")
        if "\0" in line:
            raise Place(file, number).error("holds a NUL character: not a text file in UTF-8.")
        yield number, line


def numbers(
    fields: Sequence[str], place: Place, *, empty_is_missing: bool = False
) -> Float64[np.ndarray, " k"]:
    """Parse fields to the nearest float64; a missing value becomes NaN, infinity is refused."""
    text = "".join(fields)
    # float() would also take 1_000 and digits of other scripts.
    try:
        if "_" in text or not text.isascii():
            raise ValueError
        row = np.fromiter(map(float, fields), np.float64, len(fields))
    except ValueError:
        row = _numbers_one_by_one(fields, place, empty_is_missing)
    infinite = np.flatnonzero(np.isinf(row))
    if infinite.size:
        first = int(infinite[0])
        raise place.error(f"value {first + 1} is infinite: {shown(fields[first])}.")
    return row


def _numbers_one_by_one(
    fields: Sequence[str], place: Place, empty_is_missing: bool
) -> Float64[np.ndarray, " k"]:
    row = np.empty(len(fields))
    for i, field in enumerate(fields):
        token = field.strip()
        if token.lower() in _MISSING_VALUES or (empty_is_missing and not token):
            row[i] = np.nan
            continue
        try:
            row[i] = float(token if token.isascii() and "_" not in token else "no number")
        except ValueError:
            raise place.error(f"value {i + 1} is not a number: {shown(field)}.") from None
    return row


def is_number(field: str) -> bool:
    """Whether a field reads as a number (a missing value does not)."""
    try:
        return not np.isnan(numbers([field], Place("")))[0]
    except ReadError:
        return False


def is_missing(field: str) -> bool:
    """Whether a field stands for a missing value."""
    return field.strip().lower() in _MISSING_VALUES | {""}


def label_of(field: str, place: Place) -> str:
    """Return a label's text, refusing a missing one."""
    label = field.strip()
    if label.lower() in _MISSING_LABELS:
        raise place.error(f"the label is missing ({shown(field)}).")
    return label


def labels_of(texts: Sequence[str]) -> NDArray[Any]:
    """Return labels as int64 if every one is a whole number, else as the text they are."""
    if all(_WHOLE_NUMBER.fullmatch(text) for text in texts):
        values = [float(text) for text in texts]
        if all(value.is_integer() and abs(value) <= LARGEST_WHOLE for value in values):
            return np.array([int(value) for value in values], dtype=np.int64)
    return np.array(texts)


def shown(text: str, width: int = 40) -> str:
    """Quote a piece of a file for a one-line message."""
    return repr(text if len(text) <= width else text[:width] + "...")
