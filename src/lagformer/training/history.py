"""The history of a training run: one JSON object per epoch and line, appended as it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from lagformer.training.checkpoint import write_atomically


class EpochRecord(TypedDict, total=False):
    """What is known after an epoch; the validation figures only with validation data."""

    epoch: int  # 1 for the first
    train_loss: float  # mean over the epoch, with label smoothing, dropout and augmentation
    learning_rate: float  # of the step after the epoch
    seconds: float  # wall time of the epoch, validation included
    validation_loss: float
    validation_macro_f1: float
    stopped: str  # in the last record of a run that ended before its last epoch: why


def append_history(path: Path, record: EpochRecord) -> None:
    """Add one line to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def write_history(path: Path, records: Sequence[EpochRecord]) -> None:
    """Replace the file by these records: what a resumed run starts with."""
    write_atomically(path, "".join(json.dumps(r) + "\n" for r in records).encode())


def read_history(path: Path) -> list[EpochRecord]:
    """Return the records. ValueError, with file and line, for a line that is not a record."""
    records: list[EpochRecord] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(f"{path}, line {number}: not a JSON object") from None
        if not isinstance(record, dict) or "epoch" not in record:
            raise ValueError(f"{path}, line {number}: not the record of an epoch")
        records.append(EpochRecord(**record))  # type: ignore[typeddict-item]
    return records
