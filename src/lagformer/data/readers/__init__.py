"""Recordings from files: one function for every format, each in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from lagformer.data.collection import Collection, Missing, SeriesError
from lagformer.data.readers.arff import read_arff
from lagformer.data.readers.audio import AUDIO_SUFFIXES, read_audio, read_audio_folder
from lagformer.data.readers.binary import read_npy, read_npy_pieces, read_npz, read_parquet
from lagformer.data.readers.csv import read_csv
from lagformer.data.readers.text import Place, Raw, ReadError
from lagformer.data.readers.ts import read_ts
from lagformer.data.readers.tsv import read_tsv
from lagformer.data.readers.windows import iter_windows

__all__ = ["iter_dataset", "iter_windows", "read_dataset"]

PIECE = 4096
"""Series that `iter_dataset` reads at a time."""

_READERS: dict[str, Callable[[Path], Raw]] = {
    ".ts": read_ts,
    ".tsv": read_tsv,
    ".arff": read_arff,
    ".npz": read_npz,
    ".npy": read_npy,
    **dict.fromkeys(AUDIO_SUFFIXES, read_audio),
}
_TABLES: dict[str, Callable[[Path, str | int | None], Raw]] = {
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_dataset(
    path: str | Path, *, missing: Missing = "mask", label: str | int | None = None
) -> Collection:
    """Read a data set from a file, or from a folder of audio files.

    The format follows from the suffix: ``.ts`` (aeon, sktime), ``.tsv`` (UCR), ``.csv`` and
    ``.parquet`` (wide or long), ``.arff``, ``.npz``, ``.npy``, ``.wav`` and ``.flac``. A folder
    holds audio files, or one sub-folder of them per class. Samples are float64, the nearest to
    what is written. Labels keep their case; they are integers where all are whole numbers.

    Args:
        path: the file or folder.
        missing: what to do with values the file marks as missing (``?``, ``NaN``, an empty
            cell), as in :meth:`Collection.from_arrays`. The default keeps them as they are: masked.
        label: for ``.csv`` and ``.parquet``, the name or position of the label column where it is
            none of label, labels, class, target, y.

    Raises:
        ValueError: for every reading error, in one line that names the file and, in formats that
            have lines, the line.
    """
    path = Path(path)
    return next(_collections(path, missing, (_read(p, label) for p in [path])))


def iter_dataset(
    path: str | Path, *, missing: Missing = "mask", label: str | int | None = None
) -> Iterator[Collection]:
    """Yield what `read_dataset` reads piece by piece, where the format allows it.

    Of an ``.npy`` file memory holds 4096 series, however many there are; names count from its
    first. Other formats are one piece. Arguments and errors as `read_dataset`.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy" and path.is_file() and label is None:
        return _collections(path, missing, read_npy_pieces(path, PIECE))
    return _collections(path, missing, (_read(p, label) for p in [path]))


def _collections(path: Path, missing: Missing, pieces: Iterator[Raw]) -> Iterator[Collection]:
    """Validate what a reader finds; every error names the file."""
    raw = Raw(None)
    try:
        for raw in pieces:
            yield Collection.from_arrays(
                raw.series, raw.labels, missing=missing, names=raw.names, source=str(path)
            )
    except ReadError:
        raise
    except SeriesError as error:
        line = raw.lines[error.index] if raw.lines and error.index >= 0 else None
        name = f"{path}, counted from series {raw.first}" if raw.first else str(path)
        raise Place(name, line).error(str(error)) from error
    except Exception as error:  # a format's own library may meet malformed bytes with anything
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Place(str(path)).error(f"not readable: {what}") from error


def _read(path: Path, label: str | int | None) -> Raw:
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_audio_folder(path)
    if suffix not in _READERS and suffix not in _TABLES:
        known = " ".join([*_READERS, *_TABLES])
        raise Place(str(path)).error(f"unknown suffix {suffix!r}; read are {known}.")
    if not path.exists():
        raise Place(str(path)).error("no such file.")
    if suffix in _TABLES:
        return _TABLES[suffix](path, label)
    if label is not None:
        raise Place(str(path)).error(f"label= is for {' and '.join(_TABLES)} alone.")
    return _READERS[suffix](path)
