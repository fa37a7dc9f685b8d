"""Scanning a recording: the same labels as the windows cut by hand, live, and drawn."""

import io
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import soundfile
import torch

from lagformer import LagformerClassifier
from lagformer.scan import plot_timeline, scan

Y = np.arange(40) % 2
X = np.sin((0.4 + 0.8 * Y[:, None]) * np.arange(20) + np.arange(40)[:, None])
RECORDING = np.concatenate([np.sin(0.4 * np.arange(300)), np.sin(1.2 * np.arange(333))])


@pytest.fixture(scope="module")
def model() -> LagformerClassifier:
    labels = np.array(["slow", "fast"])[Y]
    return LagformerClassifier(max_epochs=40, learning_rate=3e-3, random_state=0).fit(X, labels)


def write_csv(path: Path, samples: np.ndarray = RECORDING) -> Path:
    path.write_text("x\n" + "\n".join(map(repr, map(float, samples))) + "\n")
    return path


@pytest.mark.parametrize(("window", "hop"), [(None, None), (20, 7), (31, 50), (7, None)])
def test_the_windows_are_those_cut_by_hand(
    window: int | None, hop: int | None, model: LagformerClassifier, tmp_path: Path
) -> None:
    found = list(scan(model, write_csv(tmp_path / "r.csv"), window=window, hop=hop))
    length = window or 20
    starts = list(range(0, len(RECORDING) - length + 1, hop or length))
    assert [w.start for w in found] == starts
    p = model.predict_proba([RECORDING[s : s + length] for s in starts])
    assert [w.label for w in found] == model.classes_[p.argmax(axis=1)].tolist()
    np.testing.assert_allclose([w.probability for w in found], p.max(axis=1), rtol=0, atol=1e-6)
    assert all(w.time is None for w in found)


def test_it_finds_where_the_sound_changes(model: LagformerClassifier, tmp_path: Path) -> None:
    found = list(scan(model, write_csv(tmp_path / "r.csv")))
    assert {w.label for w in found[:15]} == {"slow"}
    assert {w.label for w in found[15:]} == {"fast"}


def test_audio_brings_its_rate(model: LagformerClassifier, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "r.wav", RECORDING, 100, subtype="DOUBLE")
    found = list(scan(model, tmp_path / "r.wav", hop=50))
    assert [w.time for w in found[:3]] == [0.0, 0.5, 1.0]
    assert [w.time for w in scan(model, tmp_path / "r.wav", hop=50, rate=50)][1] == 1.0


def test_live_windows_come_as_soon_as_their_last_line_is_there(model: LagformerClassifier) -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for value in RECORDING:
            read += 1
            yield f"{value}\n"

    for i, found in enumerate(scan(model, lines(), hop=10)):
        assert found.start == 10 * i
        # One line ahead: the first line decides whether there is a header.
        assert read <= 20 + 10 * i + 1
    assert i == (len(RECORDING) - 20) // 10


def test_memory_does_not_grow_with_the_recording(
    model: LagformerClassifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    longest = 0
    forward = type(model.model_).forward

    def watched(self: object, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        nonlocal longest
        longest = max(longest, x.numel())
        return forward(self, x, mask)

    monkeypatch.setattr(type(model.model_), "forward", watched)
    path = write_csv(tmp_path / "r.csv", np.tile(RECORDING, 10))
    assert len(list(scan(model, path))) == 316
    assert longest == 64 * 20


@pytest.mark.parametrize("kind", ["file", "pipe", "text"])
def test_standard_input_that_is_a_file_need_not_be_answered_line_by_line(
    kind: str, model: LagformerClassifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = []
    predict_proba = type(model).predict_proba

    def watched(self: LagformerClassifier, X: np.ndarray) -> np.ndarray:
        batches.append(len(X))
        return predict_proba(self, X)

    path = write_csv(tmp_path / "r.csv", RECORDING[:200])
    expected = list(scan(model, path))
    monkeypatch.setattr(type(model), "predict_proba", watched)
    if kind == "file":
        source: io.TextIOBase = path.open()
    elif kind == "pipe":
        source, end = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw", strict=True))
        end.write(path.read_text())
        end.close()
    else:
        source = io.StringIO(path.read_text())
    with source:
        monkeypatch.setattr("sys.stdin", source)
        found = list(scan(model, "-"))
    assert batches == ([10] if kind == "file" else [1] * 10)
    assert [(w.start, w.label) for w in found] == [(w.start, w.label) for w in expected]


def test_nothing_is_kept_of_the_windows_that_are_done(tmp_path: Path) -> None:
    class Model:
        config_: ClassVar = {"series_length": 4}
        classes_ = np.array([0, 1])

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return np.full((len(X), 2), 0.5)

    peaks = []
    for n in (2_000, 20_000):
        path = write_csv(tmp_path / "r.csv", np.zeros(n + 3))
        tracemalloc.start()
        assert sum(1 for _ in scan(Model(), path, hop=1)) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 20_000, "a byte a window"


def test_what_does_not_fit_is_one_line(model: LagformerClassifier, tmp_path: Path) -> None:
    short = write_csv(tmp_path / "short.csv", RECORDING[:19])
    two = tmp_path / "two.csv"
    two.write_text("a,b\n" + "1.0,2.0\n" * 40)
    for source, arguments, message in (
        (short, {}, "19 samples, fewer than one window of 20"),
        (two, {}, r"2 channel\(s\), but the model was fitted on 1"),
        (short, {"window": 0}, "window and hop must be at least 1"),
        (short, {"rate": 0.0}, "rate must be positive"),
        (tmp_path / "none.csv", {}, r"none\.csv"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            list(scan(model, source, **arguments))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_timeline_is_drawn(suffix: str, model: LagformerClassifier, tmp_path: Path) -> None:
    found = list(scan(model, write_csv(tmp_path / "r.csv"), rate=10.0))
    plot_timeline(found, tmp_path / f"t{suffix}")
    content = (tmp_path / f"t{suffix}").read_bytes()
    if suffix == ".svg":
        assert b"time (s)" in content
        assert b"slow" in content
        assert b"fast" in content
    else:
        from matplotlib.image import imread

        image = imread(io.BytesIO(content))
        assert image.std() > 0.05, "something is drawn"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.csv", f"t{suffix}"]


def test_a_timeline_of_nothing_or_of_no_known_format(
    model: LagformerClassifier, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no window to draw"):
        plot_timeline([], tmp_path / "t.png")
    found = list(scan(model, write_csv(tmp_path / "r.csv")))
    with pytest.raises(ValueError, match="'docx' is not supported"):
        plot_timeline(found, tmp_path / "t.docx")
