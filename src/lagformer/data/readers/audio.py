"""``.wav`` and ``.flac``: a file is one series, a folder of class folders a labelled collection.

Integer samples come out in [-1, 1): 16-bit ones divided by 32768. Float samples are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
from jaxtyping import Float64

from lagformer.data.readers.text import Place, Raw, labels_of

AUDIO_SUFFIXES = (".wav", ".flac")
_BLOCK = 1 << 20
_CUT_SHORT = re.compile(r"^data : (\d+) \(should be", re.MULTILINE)
_UNKNOWN_SIZE = 0xFFFFFFFF  # written by programs that stream


@contextmanager
def open_audio(path: Path) -> Iterator[soundfile.SoundFile]:
    """Open a recording, refusing one whose header declares another size than it has."""
    with soundfile.SoundFile(path) as file:
        # libsndfile reads what there is of a torn file and says so in its log alone.
        declared = _CUT_SHORT.search(file.extra_info)
        cut_short = declared is not None and int(declared[1]) != _UNKNOWN_SIZE
        if cut_short or "Exiting parser" in file.extra_info:
            raise Place(str(path)).error("torn: its header declares another size than it has.")
        yield file


def read_audio(path: Path) -> Raw:
    """Read one recording as one series (C, L)."""
    samples, _ = _samples(path)
    return Raw([samples], names=[path.stem])


def read_audio_folder(folder: Path) -> Raw:
    """Read a folder with one sub-folder of audio files per class, or of audio files alone."""
    place = Place(str(folder))
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    loose = _audio_files(folder)
    if classes and loose:
        raise place.error(f"audio beside class folders: is {loose[0].name} of no class?")
    labelled = [(file, sub.name) for sub in classes for file in _audio_files(sub)]
    files = loose or [file for file, _ in labelled]
    if not files:
        raise place.error(f"no {' or '.join(AUDIO_SUFFIXES)} files, nor class folders of them.")
    for sub in classes:
        if not _audio_files(sub):
            raise Place(str(sub)).error(f"no {' or '.join(AUDIO_SUFFIXES)} files.")
    series: list[Float64[np.ndarray, "C L"]] = []
    first_rate = None
    for file in files:
        try:
            samples, rate = _samples(file)
        except (OSError, RuntimeError) as error:
            raise Place(str(file)).error(f"{error}") from error
        first_rate = first_rate or rate
        if rate != first_rate or (series and len(samples) != len(series[0])):
            raise Place(str(file)).error(
                f"{len(samples)} channel(s) at {rate} Hz, but {files[0]} has "
                f"{len(series[0])} at {first_rate} Hz."
            )
        series.append(samples)
    labels = labels_of([label for _, label in labelled]) if labelled else None
    return Raw(series, labels, [file.relative_to(folder).as_posix() for file in files])


def _audio_files(folder: Path) -> list[Path]:
    return sorted(
        p
        for p in folder.iterdir()
        if p.suffix.lower() in AUDIO_SUFFIXES and not p.name.startswith(".")
    )


def _samples(path: Path) -> tuple[Float64[np.ndarray, "C L"], int]:
    """Read block by block: a header that lies about the length allocates nothing."""
    with open_audio(path) as file:
        blocks = [file.read(_BLOCK, dtype="float64", always_2d=True)]
        while len(blocks[-1]) == _BLOCK:
            blocks.append(file.read(_BLOCK, dtype="float64", always_2d=True))
        samples = np.concatenate(blocks).T
        if samples.shape[1] != file.frames:
            raise Place(str(path)).error(
                f"torn: {samples.shape[1]} samples, but its header declares {file.frames}."
            )
        return samples, int(file.samplerate)
