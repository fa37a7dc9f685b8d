"""Files are whole or absent, and a changed bit is noticed."""

import contextlib
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer.training.checkpoint import (
    digest,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)

SHARED = torch.arange(6.0)
TENSORS = {
    "a": SHARED.view(2, 3),
    "b": SHARED[::2],  # a view of a's memory, with gaps
    "step": torch.tensor(3.0),
    "mask": torch.tensor([True, False]),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "big": torch.tensor([2**53 + 1]),
}
STATE = {"epoch": 3, "rate": 0.1 + 0.2, "history": [{"epoch": 1}], "none": None}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, TENSORS, STATE)
    tensors, state = load_checkpoint(path)
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert os.listdir(tmp_path) == ["c.safetensors"]  # noqa: PTH208


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_changed_bit_is_noticed(
    where: float, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flip") / "c.safetensors"
    save_checkpoint(path, {"a": torch.arange(30.0)}, {"epoch": 1})
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(content)
    # A flipped header bit may still decode to the same content (a JSON space, say).
    with contextlib.suppress(ValueError):
        tensors, state = load_checkpoint(path)
        assert torch.equal(tensors["a"], torch.arange(30.0))
        assert state == {"epoch": 1}


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_one_line(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, TENSORS, STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged")) as raised:
        load_checkpoint(path)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_an_oserror_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_write_that_dies_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def die(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_the_digest_sees_names_types_shapes_and_texts() -> None:
    zeros = torch.zeros(4)
    variants = [
        digest({"a": zeros}),
        digest({"b": zeros}),
        digest({"a": zeros.view(2, 2)}),
        digest({"a": zeros.int()}),
        digest({"a": zeros}, ""),
        digest({"a": zeros}, "x", "y"),
        digest({"a": zeros}, "xy"),
    ]
    assert len(set(variants)) == len(variants)
    assert digest({"a": zeros, "b": zeros}) == digest({"b": zeros.clone(), "a": zeros})
