"""The ``.ts`` format of sktime and aeon.

A header of ``@`` lines, then after ``@data`` one series a line: channels separated by ``:``,
values by ``,``, the label last. The data beats the header about channels and lengths; heeded are
``@classLabel`` (is there a label, and which? a torn row ends in none of them), ``@targetLabel`` and
``@timeStamps``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float64

from lagformer.data.readers.text import (
    Place,
    Raw,
    is_number,
    label_of,
    labels_of,
    lines_of,
    numbers,
    shown,
)


def read_ts(path: Path) -> Raw:
    """Read a ``.ts`` file; series may differ in length, never in their number of channels."""
    lines = lines_of(path)
    labelled: bool | None = None
    classes: set[str] = set()
    for number, line in lines:
        place = Place(str(path), number)
        tag, *words = line.split()
        tag = tag.lower()
        is_true = [word.lower() for word in words[:1]] == ["true"]
        if not tag.startswith("@"):
            raise place.error("a header line must start with @ (no @data line so far).")
        if tag == "@data":
            break
        if tag in ("@classlabel", "@targetlabel"):
            labelled = bool(labelled) or is_true
            classes.update(words[1:])
        if tag == "@timestamps" and is_true:
            raise place.error("time stamps in .ts are not read; write the values alone.")
    else:
        raise Place(str(path)).error("no @data line: not a .ts file.")

    series: list[Float64[np.ndarray, "C L"]] = []
    labels: list[str] = []
    numbered: list[int] = []
    for number, line in lines:
        place = Place(str(path), number)
        *channels, last = line.split(":")
        if labelled is False:
            channels.append(last)
        elif not channels:
            raise place.error("no label after a ':' (without labels say @classLabel false).")
        else:
            labels.append(label_of(last, place))
            if classes and not _is_declared(labels[-1], classes):
                raise place.error(f"label {shown(labels[-1])} is not declared by @classLabel.")
        rows = [numbers(channel.split(","), place) for channel in channels]
        if len({len(row) for row in rows}) > 1:
            raise place.error(f"channels of lengths {', '.join(str(len(r)) for r in rows[:5])}.")
        if series and len(rows) != len(series[0]):
            raise place.error(
                f"{len(rows)} channel(s), but line {numbered[0]} has {len(series[0])}."
            )
        series.append(np.stack(rows))
        numbered.append(number)
    if not series:
        raise Place(str(path)).error("no series after @data.")
    return Raw(series, labels_of(labels) if labels else None, lines=numbered)


def _is_declared(label: str, classes: set[str]) -> bool:
    """Whether the header names the label, maybe written otherwise (1 and 1.0)."""
    if label in classes:
        return True
    return is_number(label) and any(is_number(c) and float(c) == float(label) for c in classes)
