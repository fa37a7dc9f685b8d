"""One line an epoch."""

from pathlib import Path

import pytest

from lagformer.training.history import EpochRecord, append_history, read_history, write_history

RECORDS = [EpochRecord(epoch=i, train_loss=0.1 * i, learning_rate=1e-3) for i in (1, 2, 3)]


def test_what_is_written_and_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_history(path, RECORDS[2])
    write_history(path, RECORDS[:1])
    append_history(path, RECORDS[1])
    assert read_history(path) == RECORDS[:2]
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("line", ['{"epoch": 2', "[2]", '{"loss": 1}', ""])
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, RECORDS)
    path.write_text(path.read_text().replace("\n", f"\n{line}\n", 1))
    with pytest.raises(ValueError, match=r"history.jsonl, line 2: not"):
        read_history(path)
