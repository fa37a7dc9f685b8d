"""Which column of a table is what, and how rows become series; shared by csv and parquet.

Three layouts:

- *wide*: a row is a series; columns are its label, its id, and its samples in order;
- *long*: a row is one time step of the series named in the id column; other columns are channels;
- *recording*: a time column without an id column, or one lone column: the table is one series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from lagformer.data.readers.text import Place, Raw, shown

LABEL_NAMES = frozenset({"label", "labels", "class", "target", "y"})
ID_NAMES = frozenset(
    {
        *("id", "series", "series_id", "case", "case_id", "sample_id", "recording"),
        *("name", "file", "filename", "path"),
    }
)
TIME_NAMES = frozenset(
    {"time", "t", "timestamp", "datetime", "date", "time_index", "step", "cycle"}
)
# The row index pandas writes unless told not to: neither a sample nor a name. Beside an id column
# "index" is the time.
_INDEX_NAMES = frozenset({"", "unnamed: 0", "__index_level_0__", "index"})
# A bare table with fewer columns, and this many times more rows, is more likely one recording.
_SHORT = 10
_DIMENSION_NAMES = frozenset({"dim", "dim_id", "dimension", "channel"})


@dataclass(frozen=True)
class Roles:
    """The position of each kind of column."""

    layout: Literal["wide", "long", "recording"]
    samples: list[int]
    label: int | None = None
    id: int | None = None
    time: int | None = None

    @property
    def has_keys(self) -> bool:
        """Whether anything but samples tells what a row is."""
        return any(column is not None for column in (self.label, self.id, self.time))


def roles_of(
    names: Sequence[str] | None, is_text: Sequence[bool], label: str | int | None, place: Place
) -> Roles:
    """Decide the columns' roles from their names (None: no header) and which hold text.

    The label is the column asked for; else the one named label, labels, class, target or y (y is
    a channel where there is an x or z); else the only other column of text; else there is none.
    A column with a label's name is never a sample. Without a header the label is the only column
    of text, and a table of numbers alone is refused: its first column may be a label or a sample.
    """
    count = len(is_text)
    known = [name.strip().lower() for name in names] if names is not None else [""] * count
    has_id = bool(ID_NAMES & set(known))
    time_names = TIME_NAMES | {"index"} if has_id else TIME_NAMES
    index_names = _INDEX_NAMES - time_names if names is not None else frozenset()
    index = [i for i in range(count) if known[i] in index_names]
    asked = None if label is None else _asked_label(names, count, label, place)
    taken = {asked, *index}
    id_ = _only("id", [i for i in range(count) if known[i] in ID_NAMES and i not in taken], place)
    time = _only(
        "time", [i for i in range(count) if known[i] in time_names and i not in taken], place
    )
    taken |= {id_, time}
    candidates = [i for i in range(count) if known[i] in _label_names(known)]
    if asked is None:
        texts = [i for i in range(count) if is_text[i] and i not in taken]
        asked = _only("label", candidates or texts, place)
    taken |= {asked, *candidates}
    if names is None and asked is None and count > 1:
        raise place.error(
            "no header: is a column the label? Add a header line (label,t0,t1,... or t0,t1,...), "
            "or name the label column by its position (label=0 the first, label=-1 the last)."
        )
    samples = [i for i in range(count) if i not in taken]
    if not samples:
        raise place.error("no column of samples.")
    dimension = [i for i in samples if known[i] in _DIMENSION_NAMES]
    if time is not None and dimension:
        raise place.error(
            f"column {shown(known[dimension[0]])}: give every channel a column of its own."
        )
    if time is not None:
        return Roles("recording" if id_ is None else "long", samples, asked, id_, time)
    lone = count - len(index) == 1
    return Roles("recording" if lone else "wide", samples, asked, id_)


def channels_of(names: Sequence[str] | None, count: int) -> list[int]:
    """Return the columns that are channels when the whole table is known to be one recording."""
    if names is None:
        return list(range(count))
    known = [name.strip().lower() for name in names]
    aside = _INDEX_NAMES | TIME_NAMES | _label_names(known)
    return [i for i in range(count) if known[i] not in aside]


def _label_names(known: Sequence[str]) -> frozenset[str]:
    return LABEL_NAMES - {"y"} if {"x", "z"} & set(known) else LABEL_NAMES


def _asked_label(names: Sequence[str] | None, count: int, label: str | int, place: Place) -> int:
    if isinstance(label, int):
        if not -count <= label < count:
            raise place.error(f"label={label}, but there are {count} columns.")
        return label % count
    if names is None or label not in names:
        raise place.error(f"no column is named {shown(label)}.")
    return list(names).index(label)


def _only(role: str, candidates: list[int], place: Place) -> int | None:
    if len(candidates) > 1:
        cure = " Name it: label=..." if role == "label" else ""
        columns = ", ".join(str(i + 1) for i in candidates[:5])
        raise place.error(f"columns {columns} could each be the {role}.{cure}")
    return candidates[0] if candidates else None


@dataclass
class Rows:
    """A table's columns by role, one entry a row."""

    samples: Float64[np.ndarray, "rows columns"]
    labels: Sequence[Any] | None
    ids: Sequence[Any] | None
    times: Sequence[Any] | None
    """Anything that sorts."""
    place: Callable[[int], Place]
    """Where row i is, for messages."""


def series_of(
    rows: Rows, roles: Roles, labels_array: Callable[[Sequence[Any]], NDArray[Any]], name: str
) -> Raw:
    """Assemble the rows of any layout into series; ``name`` names a recording."""
    lines = [rows.place(i).line or 0 for i in range(len(rows.samples))]
    if roles.layout == "wide":
        steps = len(roles.samples)
        if not roles.has_keys and steps < _SHORT <= len(lines) // steps:
            raise rows.place(0).error(
                f"{len(lines)} rows of {steps} columns: is a row a series or a time step? "
                f"Add a column named label or id (series) or time (time steps)."
            )
        if rows.ids is not None:
            _refuse_repeated_ids(rows.ids, rows.place)
        labels = None if rows.labels is None else labels_array(rows.labels)
        names = None if rows.ids is None else [str(i) for i in rows.ids]
        return Raw(rows.samples, labels, names, lines)

    ids = [name] * len(rows.samples) if rows.ids is None else rows.ids
    for i, id_ in enumerate(ids):
        if id_ is None or id_ == "":
            raise rows.place(i).error("the id is missing.")
    members: dict[Any, list[int]] = {}
    for i, id_ in enumerate(ids):
        members.setdefault(id_, []).append(i)
    series = []
    for indices in members.values():
        if rows.times is not None:
            times = rows.times
            indices.sort(key=lambda i: times[i])
            for before, after in pairwise(indices):
                if times[before] == times[after]:
                    raise rows.place(after).error(
                        f"time {times[after]} of series {ids[after]!r} is there twice."
                    )
        if rows.labels is not None:
            for i in indices:
                if rows.labels[i] != rows.labels[indices[0]]:
                    raise rows.place(i).error(
                        f"label {rows.labels[i]!r} of series {ids[i]!r} was "
                        f"{rows.labels[indices[0]]!r} before."
                    )
        series.append(rows.samples[indices].T)
    first = [min(indices) for indices in members.values()]
    labels = None if rows.labels is None else labels_array([rows.labels[i] for i in first])
    return Raw(series, labels, [str(id_) for id_ in members], [lines[i] for i in first])


def _refuse_repeated_ids(ids: Sequence[Any], place: Callable[[int], Place]) -> None:
    seen = set()
    for i, id_ in enumerate(ids):
        if id_ in seen:
            raise place(i).error(
                f"id {id_!r} is there twice, and no time column orders its rows. "
                f"Name the time column 'time', or make the ids unique."
            )
        seen.add(id_)
