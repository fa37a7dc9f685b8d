"""Predictions are written as they are made, as one table or one JSON object."""

import csv
import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from lagformer.data import Collection
from lagformer.evaluation import write_predictions


class Model:
    """Answers with the series' own values; a negative one is an error."""

    classes_ = np.array(["no", "yes, certainly"])

    def predict_proba(self, data: Collection) -> np.ndarray:
        p = data.values[:, 0, 0]
        if (p < 0).any():
            raise ValueError("negative")
        return np.stack([1 - p, p], axis=1)


def pieces(*values: list[float]) -> list[Collection]:
    names = iter("abcdefgh")
    return [
        Collection.from_arrays(np.array(v)[:, None], names=[next(names) for _ in v]) for v in values
    ]


def written(*values: list[float], **wanted: bool) -> dict[str, str]:
    files: dict[str, Any] = {name: io.StringIO() for name in wanted}
    write_predictions(Model(), pieces(*values), **files)
    return {name: file.getvalue() for name, file in files.items()}


def test_a_table_and_an_object_whatever_the_pieces() -> None:
    values = [0.25, 0.75, 1 / 3]
    found = written(values, table=True, as_json=True)
    for split in ([values[:1], values[1:]], [values[:2], values[2:]], [[v] for v in values]):
        assert written(*split, table=True, as_json=True) == found
        assert written(*split, table=True)["table"] == found["table"]
        assert written(*split, as_json=True)["as_json"] == found["as_json"]
    assert list(csv.reader(found["table"].splitlines())) == [
        ["name", "label", "probability of no", "probability of yes, certainly"],
        ["a", "no", "0.75", "0.25"],
        ["b", "yes, certainly", "0.25", "0.75"],
        ["c", "no", "0.666667", "0.333333"],
    ]
    assert json.loads(found["as_json"]) == {
        "classes": ["no", "yes, certainly"],
        "predictions": [
            {"name": "a", "label": "no", "probabilities": [0.75, 0.25]},
            {"name": "b", "label": "yes, certainly", "probabilities": [0.25, 0.75]},
            {"name": "c", "label": "no", "probabilities": [1 - 1 / 3, 1 / 3]},
        ],
    }
    assert found["as_json"].count("\n") == 1


def test_nothing_is_written_before_the_first_answer() -> None:
    table, as_json = io.StringIO(), io.StringIO()
    with pytest.raises(ValueError, match="negative"):
        write_predictions(Model(), pieces([-1.0]), table=table, as_json=as_json)
    assert table.getvalue() == as_json.getvalue() == ""


def test_memory_does_not_grow_with_the_number_of_series() -> None:
    class Sink(io.TextIOBase):
        def write(self, text: str) -> int:
            return len(text)

    part = Collection.from_arrays(np.full((1000, 1), 0.5))
    peaks = []
    for n in (20, 200):
        tracemalloc.start()
        write_predictions(Model(), (part for _ in range(n)), table=Sink(), as_json=Sink())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000, "half a byte a series"
