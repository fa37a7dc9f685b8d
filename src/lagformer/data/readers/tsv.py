"""The UCR archive's ``.tsv``: one series a line, the label first, no header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float64

from lagformer.data.readers.text import (
    Place,
    Raw,
    label_of,
    labels_of,
    lines_of,
    numbers,
)


def read_tsv(path: Path) -> Raw:
    """Read a UCR ``.tsv``; shorter series are padded with NaN or empty fields, never cut off.

    A row with fewer fields than the longest one is refused: it cannot be told from a torn file.
    """
    series: list[Float64[np.ndarray, " L"]] = []
    labels: list[str] = []
    numbered: list[int] = []
    widths: list[int] = []  # values with a field of their own, be it empty
    for number, line in lines_of(path):
        place = Place(str(path), number)
        label, *fields = line.split("\t")
        if not fields:
            raise place.error("one field alone: values follow the label, separated by tabs.")
        labels.append(label_of(label, place))
        widths.append(len(fields))
        while fields and not fields[-1].strip():
            fields.pop()
        series.append(numbers(fields, place, empty_is_missing=True))
        numbered.append(number)
    if not series:
        raise Place(str(path)).error("no series.")
    longest = max(range(len(series)), key=lambda i: len(series[i]))
    for i, width in enumerate(widths):
        if width < len(series[longest]):
            raise Place(str(path), numbered[i]).error(
                f"{width} value(s), but line {numbered[longest]} has {len(series[longest])}. "
                f"Pad shorter series with NaN."
            )
    return Raw(series, labels_of(labels), lines=numbered)
