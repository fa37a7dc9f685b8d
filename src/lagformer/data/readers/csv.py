"""``.csv``, wide or long, with or without a header; commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from lagformer.data.readers.table import (
    ID_NAMES,
    LABEL_NAMES,
    TIME_NAMES,
    Rows,
    roles_of,
    series_of,
)
from lagformer.data.readers.text import (
    Line,
    Place,
    Raw,
    is_missing,
    is_number,
    label_of,
    labels_of,
    lines_of,
    numbers,
    shown,
)


def read_csv(path: Path, label: str | int | None = None) -> Raw:
    """Read a ``.csv``; see :func:`lagformer.data.readers.table.roles_of` for the columns' roles."""
    samples: list[Float64[np.ndarray, " columns"]] = []
    labels: list[str] = []
    ids: list[str] = []
    times: list[int | float] = []
    places: list[Place] = []
    header_place, header, cells = open_table(lines_of(path), str(path))
    first = next(cells, None)
    if first is None:
        raise Place(str(path)).error("a header, but no rows.")
    roles = roles_of(header, [_is_text(cell) for cell in first[1]], label, header_place)
    for place, row in chain([first], cells):
        samples.append(numbers([row[i] for i in roles.samples], place, empty_is_missing=True))
        if roles.label is not None:
            labels.append(label_of(row[roles.label], place))
        if roles.id is not None:
            ids.append(row[roles.id].strip())
        if roles.time is not None:
            times.append(_time(row[roles.time].strip(), place))
        places.append(place)
    rows = Rows(np.array(samples), labels or None, ids or None, times or None, places.__getitem__)
    return series_of(rows, roles, labels_of, path.stem)


def open_table(
    lines: Iterator[Line], file: str
) -> tuple[Place, list[str] | None, Iterator[tuple[Place, list[str]]]]:
    """Return the place and names of the header (None: there is none) and the rows of cells.

    Every row has as many cells as the first.
    """
    cells = _cells(lines, file)
    place, first = next(cells, (Place(file), []))
    if not first:
        raise place.error("no rows.")
    if _is_header(first, place):
        return place, first, cells
    return place, None, chain([(place, first)], cells)


def _cells(lines: Iterator[Line], file: str) -> Iterator[tuple[Place, list[str]]]:
    """Split lines into cells, refusing a row whose number of cells is not the first row's."""
    number, line = next(lines, (0, ""))
    delimiter = next((d for d in ",;\t" if d in line), ",")
    place = Place(file, number or None)

    def texts() -> Iterator[str]:
        nonlocal place
        if number:
            yield line
        for following, text in lines:
            place = Place(file, following)
            yield text

    width = None
    rows = csv.reader(texts(), delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise place.error(f"{error}.") from None
        if row is None:
            return
        width = len(row) if width is None else width
        if len(row) != width:
            raise place.error(f"{len(row)} cell(s), but the first row has {width}.")
        yield place, row


def _is_text(cell: str) -> bool:
    return not is_number(cell) and not is_missing(cell)


def _is_header(row: list[str], place: Place) -> bool:
    """Whether the first row names the columns.

    It does if it holds text alone, or a known column name (a lone "y" or "t" beside numbers is a
    label, unless the numbers count 0, 1, 2, ... or 1, 2, 3, ...). Other rows that count are
    refused: they could be column numbers or a series.
    """
    texts = {cell.strip().lower() for cell in row if _is_text(cell)}
    rest = [cell.strip() for cell in row if not _is_text(cell) and cell.strip()]
    known = texts & (LABEL_NAMES | ID_NAMES | TIME_NAMES)
    counts = len(rest) > 2 and rest in ([str(i + k) for i in range(len(rest))] for k in (0, 1))
    if counts and not known:
        raise place.error(
            "a header of column numbers, or a series that counts? Name the columns t0,t1,..."
        )
    return (bool(texts) and not rest) or counts or any(len(name) > 1 for name in known)


def _time(field: str, place: Place) -> int | float:
    """Parse a time: a number, or an ISO 8601 date, without a zone taken as UTC."""
    if field.isascii() and field.isdigit() and len(field) < 20:
        return int(field)
    if is_number(field):
        return float(field)
    try:
        moment = datetime.fromisoformat(field)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise place.error(f"time {shown(field)} is neither a number nor an ISO date.") from None
