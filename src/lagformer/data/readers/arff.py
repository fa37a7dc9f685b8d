"""Weka's ``.arff`` as the UCR and UEA archives write it.

Univariate: one numeric attribute per time step and a nominal class. Multivariate: one relational
attribute whose value is a quoted string, channels separated by a literal backslash-n.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from lagformer.data.readers.table import LABEL_NAMES
from lagformer.data.readers.text import (
    Line,
    Place,
    Raw,
    label_of,
    labels_of,
    lines_of,
    numbers,
    shown,
)

_NUMERIC = frozenset({"numeric", "real", "integer"})
# A field: quoted with ' or " (a backslash escapes), or anything up to the next comma.
_FIELD = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,'"]*))\s*(?:,|$)""")
_ATTRIBUTE = re.compile(r"""@attribute\s+('[^']*'|"[^"]*"|\S+)\s+(.*)""", re.IGNORECASE)


@dataclass(frozen=True)
class _Attribute:
    name: str
    kind: str  # "numeric", "nominal" or "relational"
    values: frozenset[str] = frozenset()  # a nominal attribute's declared values


def read_arff(path: Path) -> Raw:
    """Read a univariate or relational ``.arff`` file."""
    lines = lines_of(path, comment="%")
    attributes = _header(lines, path)
    label = _label_index(attributes, path)
    samples = [i for i in range(len(attributes)) if i != label]
    relational = [attributes[i].kind for i in samples] == ["relational"]
    if not samples or not (relational or all(attributes[i].kind == "numeric" for i in samples)):
        raise Place(str(path)).error(
            "expected numeric attributes or one relational one, and at most one nominal class."
        )
    series: list[Float64[np.ndarray, "C L"]] = []
    labels: list[str] = []
    numbered: list[int] = []
    for number, line in lines:
        place = Place(str(path), number)
        fields = _fields(line, place)
        if len(fields) != len(attributes):
            raise place.error(f"{len(fields)} value(s) for {len(attributes)} attributes.")
        if label is not None:
            labels.append(_label(fields[label], attributes[label], place))
        if relational:
            series.append(_channels(fields[samples[0]], place))
        else:
            series.append(numbers([fields[i] for i in samples], place)[None, :])
        if len(series[-1]) != len(series[0]):
            raise place.error(
                f"{len(series[-1])} channel(s), but line {numbered[0]} has {len(series[0])}."
            )
        numbered.append(number)
    if not series:
        raise Place(str(path)).error("no series after @data.")
    return Raw(series, labels_of(labels) if labels else None, lines=numbered)


def _header(lines: Iterator[Line], path: Path) -> list[_Attribute]:
    """Read up to @data; attributes inside a relational one are its time steps, not fields."""
    attributes: list[_Attribute] = []
    inside_relational = False
    for number, line in lines:
        place = Place(str(path), number)
        keyword = line.split()[0].lower()
        if keyword == "@data":
            return attributes
        if keyword == "@end":
            inside_relational = False
        elif keyword == "@attribute" and not inside_relational:
            attributes.append(_attribute(line, place))
            inside_relational = attributes[-1].kind == "relational"
        elif keyword not in ("@attribute", "@relation"):
            raise place.error(f"expected @relation, @attribute or @data, got {shown(line)}.")
    raise Place(str(path)).error("no @data line: not an .arff file.")


def _attribute(line: str, place: Place) -> _Attribute:
    match = _ATTRIBUTE.fullmatch(line.strip())
    if not match:
        raise place.error("expected @attribute NAME TYPE.")
    name, kind = match[1].strip("'\""), match[2].strip()
    if kind.lower() in _NUMERIC:
        return _Attribute(name, "numeric")
    if kind.lower() == "relational":
        return _Attribute(name, "relational")
    if kind.startswith("{") and kind.endswith("}"):
        return _Attribute(name, "nominal", frozenset(_fields(kind[1:-1], place)))
    raise place.error(f"attributes of type {shown(kind)} are not read.")


def _label_index(attributes: list[_Attribute], path: Path) -> int | None:
    """The nominal attribute, else the numeric one with a label's name, else None."""
    nominal = [i for i, attribute in enumerate(attributes) if attribute.kind == "nominal"]
    named = [i for i, attribute in enumerate(attributes) if attribute.name.lower() in LABEL_NAMES]
    candidates = nominal or named
    if len(candidates) > 1:
        raise Place(str(path)).error(f"{len(candidates)} attributes could each be the class.")
    return candidates[0] if candidates else None


def _fields(text: str, place: Place) -> list[str]:
    """Split at commas outside quotes; quotes are removed, escapes kept."""
    if text.lstrip().startswith("{"):
        raise place.error("sparse ARFF rows are not read.")
    if "'" not in text and '"' not in text:
        return [field.strip() for field in text.split(",")]
    fields = []
    position = 0
    while True:
        match = _FIELD.match(text, position)
        if not match:
            raise place.error(f"unbalanced quotes near {shown(text[position : position + 30])}.")
        fields.append(next(group for group in match.groups() if group is not None).strip())
        position = match.end()
        if not match[0].endswith(","):
            return fields


def _label(field: str, attribute: _Attribute, place: Place) -> str:
    label = label_of(field, place)
    if attribute.values and label not in attribute.values:
        raise place.error(f"label {shown(label)} is not declared by @attribute {attribute.name}.")
    return label


def _channels(field: str, place: Place) -> Float64[np.ndarray, "C L"]:
    rows = [numbers(channel.split(","), place) for channel in field.split("\\n")]
    if len({len(row) for row in rows}) > 1:
        raise place.error(f"channels of lengths {', '.join(str(len(row)) for row in rows[:5])}.")
    return np.stack(rows)
