"""A model slid over a long recording, or over one that is still being made."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from lagformer.classifier import LagformerClassifier
from lagformer.data import iter_windows
from lagformer.data.readers.audio import AUDIO_SUFFIXES
from lagformer.training.checkpoint import write_atomically

_BATCH = 64


@dataclass(frozen=True, slots=True)
class ScannedWindow:
    """What the model says about `length` samples from sample `start` on."""

    start: int
    length: int
    rate: float | None
    """Samples per second; None if unknown."""
    label: Any
    probability: float
    """Of the label."""

    @property
    def time(self) -> float | None:
        """Seconds from the beginning of the recording to the window's first sample."""
        return None if self.rate is None else self.start / self.rate


def scan(
    model: LagformerClassifier,
    source: str | Path | Iterable[str],
    *,
    window: int | None = None,
    hop: int | None = None,
    rate: float | None = None,
) -> Iterator[ScannedWindow]:
    """Classify window after window of a recording, in memory that does not grow with it.

    Args:
        model: a fitted classifier.
        source: an audio or ``.csv`` file, or lines of text or ``"-"``, whose windows are
            classified as soon as their last line is there (`iter_windows`).
        window: samples in a window; by default the length of the model's training series.
        hop: samples from one start to the next; by default ``window``.
        rate: samples per second; by default what an audio file says.

    Raises ValueError as `iter_windows` and `LagformerClassifier.predict_proba` do, and for a rate
    that is not positive.
    """
    if rate is not None and not rate > 0:
        raise ValueError(f"rate must be positive, got {rate!r}")
    length = model.config_["series_length"] if window is None else window
    labels = model.classes_.tolist()
    live = _is_live(source)
    windows = iter_windows(source, length, hop)
    for batch in iter(lambda: list(islice(windows, 1 if live else _BATCH)), []):
        if rate is None and _is_audio(source):
            rate = float(soundfile.info(str(source)).samplerate)
        probabilities = model.predict_proba(np.stack([samples for _, samples in batch]))
        for (start, _), row in zip(batch, probabilities, strict=True):
            yield ScannedWindow(start, length, rate, labels[row.argmax()], float(row.max()))


def _is_audio(source: str | Path | Iterable[str]) -> bool:
    return isinstance(source, str | Path) and Path(source).suffix.lower() in AUDIO_SUFFIXES


def _is_live(source: str | Path | Iterable[str]) -> bool:
    """Whether more may come later than what is there: lines, or a pipe as standard input."""
    if source != "-":
        return not isinstance(source, str | Path)
    try:
        return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except OSError:  # standard input is no file at all
        return True


def plot_timeline(windows: Sequence[ScannedWindow], path: Path) -> None:
    """Draw label and probability over time; `path` names a format of matplotlib (.png, .svg, ...).

    Raises ValueError for no window or an unknown format.
    """
    from matplotlib.figure import Figure

    if not windows:
        raise ValueError("no window to draw")
    rate = windows[0].rate or 1.0
    labels = sorted({w.label for w in windows})
    figure = Figure(figsize=(9, 1.6 + 0.3 * len(labels)), layout="constrained")
    rows, curve = figure.subplots(2, sharex=True, height_ratios=[len(labels), 2])
    for _, neighbours in groupby(windows, key=lambda w: w.label):
        run = list(neighbours)
        end = run[-1].start + run[-1].length
        bar = (run[0].start / rate, (end - run[0].start) / rate)
        index = labels.index(run[0].label)
        rows.broken_barh([bar], (index - 0.4, 0.8), color=f"C{index % 10}")
    rows.set_yticks(range(len(labels)), [str(label) for label in labels])
    centres = [(w.start + w.length / 2) / rate for w in windows]
    curve.plot(centres, [w.probability for w in windows], color="0.3", marker=".", lw=1)
    curve.set(ylim=(0, 1.05), ylabel="probability")
    curve.set_xlabel("sample" if windows[0].rate is None else "time (s)")
    drawing = io.BytesIO()
    figure.savefig(drawing, format=path.suffix.removeprefix(".") or "png", dpi=150)
    write_atomically(path, drawing.getvalue())
