"""One long recording, read in windows: memory holds one window, whatever the file's size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from lagformer.data.readers.audio import AUDIO_SUFFIXES, open_audio
from lagformer.data.readers.csv import open_table
from lagformer.data.readers.table import channels_of
from lagformer.data.readers.text import Line, Place, clean_lines, lines_of, numbers

Window = tuple[int, Float64[np.ndarray, "C window"]]
_Read = Callable[[int], Float64[np.ndarray, "C k"]]


def iter_windows(
    source: str | Path | Iterable[str], window: int, hop: int | None = None
) -> Iterator[Window]:
    """Yield (start, samples (C, window)) for start = 0, hop, 2·hop, ...

    Args:
        source: a ``.wav``, ``.flac`` or ``.csv`` file, ``"-"`` for standard input, or lines of
            text. Text holds one time step a line, channels separated as in ``.csv``; columns
            named as label, time or row index are left out. A window is yielded as soon as its
            last line is there.
        window: samples in a window.
        hop: samples from one start to the next; by default ``window``. A last piece shorter
            than a window is not yielded.

    Raises:
        ValueError: names the file and line of a reading error (a missing or infinite value
            included), or says that the whole recording is shorter than a window.
    """
    hop = window if hop is None else hop
    if window < 1 or hop < 1:
        raise ValueError(f"window and hop must be at least 1, got {window} and {hop}.")
    if source == "-":
        source = sys.stdin
    if not isinstance(source, str | Path):
        name = "stdin" if source is sys.stdin else "lines"
        reader = _line_reader(clean_lines(source, name), name)
        yield from _windows(reader, window, hop, Place(name))
        return
    path = Path(source)
    place = Place(str(path))
    try:
        if path.suffix.lower() in AUDIO_SUFFIXES:
            with open_audio(path) as file:
                yield from _windows(
                    lambda k: _finite(file.read(k, dtype="float64", always_2d=True).T, place),
                    window,
                    hop,
                    place,
                )
        elif path.suffix.lower() == ".csv":
            reader = _line_reader(lines_of(path), str(path))
            yield from _windows(reader, window, hop, place)
        else:
            raise place.error("windows are read from .wav, .flac and .csv files, or from lines.")
    except (OSError, RuntimeError) as error:  # soundfile's errors are RuntimeErrors
        raise place.error(str(error)) from error


def _windows(read: _Read, window: int, hop: int, place: Place) -> Iterator[Window]:
    """Slide over a recording that ``read(k)`` hands out k samples at a time, fewer at its end."""
    samples = read(window)
    if samples.shape[1] < window:
        raise place.error(f"{samples.shape[1]} samples, fewer than one window of {window}.")
    start = 0
    while samples.shape[1] == window:
        yield start, samples.copy()
        if hop < window:
            samples = np.concatenate([samples[:, hop:], read(hop)], axis=1)
        else:
            read(hop - window)
            samples = read(window)
        start += hop


def _line_reader(lines: Iterator[Line], file: str) -> _Read:
    """Read time steps from lines of text."""
    place, header, cells = open_table(lines, file)
    first = next(cells, None)
    channels = channels_of(header, len(first[1])) if first else []
    if first is None or not channels:
        raise place.error("no samples.")
    cells = chain([first], cells)

    def read(k: int) -> Float64[np.ndarray, "C k"]:
        steps = []
        for place, row in islice(cells, k):
            steps.append(_finite(numbers([row[i] for i in channels], place), place))
        return np.array(steps).reshape(len(steps), len(channels)).T

    return read


def _finite(samples: NDArray[np.float64], place: Place) -> NDArray[np.float64]:
    if not np.isfinite(samples).all():
        raise place.error("a missing or infinite value: fill it before scanning.")
    return samples
