"""``.npy``, ``.npz`` and ``.parquet``: formats whose own libraries read them exactly."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from jaxtyping import Float64
from numpy.typing import NDArray

from lagformer.data.readers.table import Rows, roles_of, series_of
from lagformer.data.readers.text import LARGEST_WHOLE, Place, Raw, shown

_NPZ_KEYS = {
    "X": ("X", "x", "values", "data"),
    "y": ("y", "labels", "label", "target"),
    "names": ("names",),
    "mask": ("mask",),
}
_NPY_HEADER = 1 << 16  # more bytes than numpy accepts in a header


def read_npy(path: Path) -> Raw:
    """Read one array: (L,) is one series, (n, L) and (n, C, L) as everywhere."""
    array = _array(np.memmap(path, np.uint8, mode="r").data, Place(str(path)))
    return Raw(array[None] if array.ndim == 1 else array)


def read_npy_pieces(path: Path, size: int) -> Iterator[Raw]:
    """Read one array, `size` series at a time."""
    n = len(read_npy(path).series)
    for start in range(0, max(n, 1), size):
        # Mapped anew: what was read of the file before stays in memory no longer.
        piece = np.array(read_npy(path).series[start : start + size])
        names = [str(i) for i in range(start, start + len(piece))]
        yield Raw(piece, names=names, first=start)


def read_npz(path: Path) -> Raw:
    """Read series from ``X`` (or x, values, data), labels from ``y`` (or labels, label, target).

    ``mask`` (n, L), False where a step is missing, and ``names`` (n,) are heeded where present.
    """
    place = Place(str(path))
    with zipfile.ZipFile(path) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist()]
        arrays = {
            role: _array(memoryview(archive.read(f"{key}.npy")), place)
            for role, wanted in _NPZ_KEYS.items()
            if (key := _key(keys, wanted, place)) is not None
        }
    if "X" not in arrays:
        found = ", ".join(keys[:10]) or "nothing"
        raise place.error(f"no array named {' or '.join(_NPZ_KEYS['X'])}; it holds {found}.")
    series = arrays["X"]
    labels, names, mask = (arrays.get(role) for role in ("y", "names", "mask"))
    if mask is not None:
        if mask.dtype != bool or mask.shape != (len(series), series.shape[-1]):
            raise place.error(f"mask must be bool (n, L), got {mask.dtype} {mask.shape}.")
        steps = mask[:, None, :] if series.ndim == 3 else mask
        series = np.where(steps, series.astype(np.float64), np.nan)
    return Raw(
        series,
        None if labels is None else whole_labels(labels),
        None if names is None else [str(name) for name in names],
    )


def _array(data: memoryview, place: Place) -> NDArray[Any]:
    """Read the bytes of an ``.npy`` file without a copy.

    numpy's own reader allocates what the header declares before it looks at what there is.
    """
    stream = io.BytesIO(data[:_NPY_HEADER])
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise place.error(f"version {version} of .npy is not read.")
    if dtype.hasobject:
        raise place.error("holds Python objects: they are never unpickled.")
    samples = np.frombuffer(data[stream.tell() :], dtype)
    return samples.reshape(shape, order="F" if is_fortran else "C")  # refuses any other size


def _key(keys: Sequence[str], wanted: Sequence[str], place: Place) -> str | None:
    found = [key for key in wanted if key in keys]
    if len(found) > 1:
        raise place.error(f"both {found[0]} and {found[1]}: which one?")
    return found[0] if found else None


def whole_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Turn float labels that are all whole numbers into integers; leave others as they are."""
    if labels.dtype.kind != "f" or not (np.abs(labels) <= LARGEST_WHOLE).all():
        return labels
    return labels.astype(np.int64) if (labels % 1 == 0).all() else labels


def read_parquet(path: Path, label: str | int | None = None) -> Raw:
    """Read a wide or long table, or one row a series with its channels in columns of lists."""
    with pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(use_threads=False)
    place = Place(str(path))
    table = table.combine_chunks()
    if table.num_rows == 0:
        raise place.error("no rows.")
    columns = [_decoded(column) for column in table.columns]
    roles = roles_of(table.column_names, [_is_text(c.type) for c in columns], label, place)
    labels = None if roles.label is None else _labels(columns[roles.label])
    ids = None if roles.id is None else columns[roles.id].to_pylist()
    samples = [columns[i] for i in roles.samples]
    if any(_is_list(column.type) for column in samples):
        if roles.time is not None or not all(_is_list(column.type) for column in samples):
            raise place.error("columns of lists beside columns of single samples.")
        channels = [_lists(column) for column in samples]
        series = [np.concatenate(c) for c in zip(*channels, strict=True)]
        return Raw(series, labels, None if ids is None else [str(i) for i in ids])
    for i in roles.samples:
        if not _is_numeric(columns[i].type):
            raise place.error(
                f"column {shown(table.column_names[i])} has type {columns[i].type}, not numbers."
            )
    rows = Rows(
        np.stack([_floats(column) for column in samples], axis=1),
        None if labels is None else labels.tolist(),
        ids,
        None if roles.time is None else _times(columns[roles.time], place),
        lambda i: Place(f"{path}, row {i + 1}"),
    )
    return series_of(rows, roles, np.array, path.stem)


def _decoded(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _floats(array: pa.Array) -> Float64[np.ndarray, " k"]:
    """Numbers as float64, null as NaN."""
    values: NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    return values


def _lists(column: pa.Array) -> list[Float64[np.ndarray, "C L"]]:
    """Each row's list as one channel, its list of lists as several."""
    series = []
    for row in column:
        values = row.values
        if values is None:
            series.append(np.empty((1, 0)))
        elif _is_list(values.type):
            series.append(np.stack([_floats(channel.values) for channel in values]))
        else:
            series.append(_floats(values)[None])
    return series


def _labels(column: pa.Array) -> NDArray[Any]:
    if _is_text(column.type):
        texts = column.to_pylist()
        return np.array(texts, dtype=object if None in texts else str)
    return whole_labels(column.to_numpy(zero_copy_only=False))


def _times(column: pa.Array, place: Place) -> list[Any]:
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ns")).cast(pa.int64())
    if _is_text(column.type):
        raise place.error("the time column is text: store numbers or timestamps.")
    times: list[Any] = column.to_pylist()
    if None in times or any(time != time for time in times):
        raise place.error("the time column has missing values.")
    return times
