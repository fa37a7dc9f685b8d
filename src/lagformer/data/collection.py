"""``Collection``: labelled series of any length, and the one validator every input passes.

Layout: series i, channel c, time t is ``values[i, c, t]``; ``mask[i, t]`` says whether that time
step is real. Padding and masked steps hold 0, so sums over time need no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike, NDArray

Missing = Literal["error", "mask", "interpolate"]
Series = Float64[np.ndarray, "C L"]

# An (n, C, L) input with this many times more channels than steps is taken for (n, L, C).
_TRANSPOSED_RATIO = 10


class SeriesError(ValueError):
    """A fault of one series; its ``index`` lets a file reader name the line."""

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, eq=False, repr=False)
class Collection:
    """n series of C channels, padded to a common length L.

    Build one with :meth:`from_arrays`, which validates; the constructor only stores.
    """

    values: Float64[np.ndarray, "n C L"]
    """Samples as given; 0 where ``mask`` is False."""
    mask: Bool[np.ndarray, "n L"]
    """True = a real time step."""
    labels: NDArray[Any] | None
    """One per series, in the source's own type and case; None if there are none."""
    names: tuple[str, ...]
    """One per series: row name, id or file name."""
    source: str = ""
    """Where the series came from (a file or data set name), for messages."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        n, channels, length = self.values.shape
        classes = (
            "no labels" if self.labels is None else f"{len(set(self.labels.tolist()))} classes"
        )
        origin = f" from {self.source}" if self.source else ""
        return (
            f"<Collection: {n} series, {channels} channel(s), length {length}, {classes}{origin}>"
        )

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Steps of each series up to its last real one, holes included."""
        length = self.mask.shape[1]
        return np.where(self.mask.any(axis=1), length - self.mask[:, ::-1].argmax(axis=1), 0)

    def subset(self, indices: ArrayLike) -> Collection:
        """Return the series at ``indices`` (integers or a boolean mask), padding unchanged."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool or not chosen.size:  # positions: of few series, no array of all
            chosen = np.arange(len(self))[chosen if chosen.size else chosen.astype(int)]
        return Collection(
            self.values[chosen],
            self.mask[chosen],
            None if self.labels is None else self.labels[chosen],
            tuple(self.names[i] for i in chosen),
            self.source,
        )

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        *,
        missing: Missing = "error",
        names: Sequence[str] | None = None,
        source: str = "",
        copy: bool = True,
    ) -> Collection:
        """Validate series and labels; the inputs are copied, never modified.

        Args:
            X: an array or DataFrame (n, L), an array (n, C, L), or a list of (L_i,) or (C, L_i)
                arrays. Two dimensions are always (n, L). NaN in every channel up to the end of a
                series is padding: the series is shorter. Any other NaN is a missing value.
            y: (n,) labels of any type, or None. Their dtype is kept.
            missing: what to do with missing values. ``"error"`` refuses them; ``"mask"`` takes the
                time step out of every channel; ``"interpolate"`` draws a straight line between
                the channel's neighbouring values and holds its first and last value at the ends.
            names: (n,) names of the series; by default "0", "1", ...
            source: where the series came from.
            copy: False takes a float64 array without NaN as it is, for as long as it is left
                alone: nothing of its size is allocated then, and ``mask`` is read-only.

        Raises:
            ValueError: for infinite or refused missing values (how many, and the first place),
                no series, a series without a real step, channel counts that differ or look
                like time, labels that do not fit, complex or sparse or text input.
            TypeError: for elements that are no numbers at all.
        """
        if missing not in get_args(Missing):
            raise ValueError(f"missing must be one of {get_args(Missing)}, got {missing!r}.")
        series = _as_series(X, copy)
        _check_channels(series)
        if isinstance(series, np.ndarray) and _all_finite(series):
            shape = series.shape[0], series.shape[2]
            values, mask = series, np.ones(shape, bool) if copy else np.broadcast_to(True, shape)
        else:
            values, mask = _padded(list(series), missing)
        labels = None if y is None else _as_labels(y, len(values))
        names = tuple(str(i) for i in range(len(values))) if names is None else tuple(names)
        if len(names) != len(values):
            raise ValueError(f"Found {len(values)} series but {len(names)} names.")
        return cls(values, mask, labels, names, source)


def _all_finite(series: Float64[np.ndarray, "n C L"]) -> bool:
    """Whether the sum is finite: then so is every value, and no array is made to find out."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(series.sum()))


def _as_series(X: Any, copy: bool) -> Float64[np.ndarray, "n C L"] | list[Series]:
    """Turn any accepted X into an (n, C, L) array, or a list of (C, L_i) arrays."""
    if hasattr(X, "toarray") or type(X).__module__.startswith("scipy.sparse"):
        raise ValueError("Sparse data was passed for X, but dense series are required.")
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        X = list(X)
    if not isinstance(X, list | tuple):
        return _as_array(_numeric(X, "X", copy))
    if len(X) == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
    series = [_numeric(x, f"series {i}") for i, x in enumerate(X)]
    if all(s.ndim == 0 for s in series):
        return _as_array(np.array(series))
    for i, s in enumerate(series):
        if s.ndim not in (1, 2) or s.ndim != series[0].ndim:
            raise ValueError(
                f"Expected every series to be (L,) or every one (C, L), but series 0 has shape "
                f"{series[0].shape} and series {i} has shape {s.shape}."
            )
    if all(s.shape == series[0].shape for s in series):
        return _as_array(np.stack(series))
    return [np.atleast_2d(s) for s in series]


def _numeric(x: Any, what: str, copy: bool = True) -> NDArray[np.float64]:
    """Turn ``x`` into float64; None, pandas' <NA> and numpy's masked entries become NaN."""
    if hasattr(x, "to_numpy"):
        table, x = x, x.to_numpy()
        if x.dtype == object:  # na_value where nothing can be missing is an error before pandas 3.1
            x = table.to_numpy(na_value=np.nan)
    if isinstance(x, np.ma.MaskedArray) and x.dtype.kind in "biuf":
        x = np.ma.filled(x.astype(np.float64), np.nan)
    try:
        array = np.asarray(x)
    except ValueError:  # numpy's word for this is "inhomogeneous shape"
        raise ValueError(f"The channels of {what} differ in length.") from None
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {what} has dtype {array.dtype}.")
    if array.dtype.kind not in "biufO":
        raise ValueError(f"Expected numbers, but {what} has dtype {array.dtype}.")
    if array.dtype == object and any(isinstance(e, complex) for e in array.flat):
        raise ValueError(f"Complex data not supported: {what} holds complex numbers.")
    with np.errstate(over="ignore"):  # too large for float64 becomes inf, refused later
        return np.array(array, np.float64) if copy else np.asarray(array, np.float64)


def _as_array(X: NDArray[np.float64]) -> Float64[np.ndarray, "n C L"]:
    """Check the shape of a whole array and give it its channel dimension."""
    if X.ndim not in (2, 3):
        raise ValueError(
            f"Expected 2D array (n, L) or 3D array (n, C, L), got {X.ndim}D array of shape "
            f"{X.shape} instead. Reshape your data: one series alone is X.reshape(1, -1)."
        )
    if X.shape[0] == 0:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required."
        )
    if 0 in X.shape:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required."
        )
    return X[:, None, :] if X.ndim == 2 else X


def _check_channels(series: Float64[np.ndarray, "n C L"] | list[Series]) -> None:
    """Refuse channel counts that differ, and series that look like (L, C)."""
    counts = sorted({s.shape[0] for s in series})
    longest = max(s.shape[1] for s in series)
    if len(counts) > 1:
        shown = ", ".join(map(str, counts[:5])) + (", ..." if len(counts) > 5 else "")
        swapped = len({s.shape[1] for s in series}) == 1
        hint = f" They all have {longest} steps: did you mean to transpose them?" if swapped else ""
        raise ValueError(f"Series have different channel counts ({shown}) in (C, L) layout.{hint}")
    (channels,) = counts
    if channels > 1 and (longest == 1 or channels >= _TRANSPOSED_RATIO * longest > 0):
        raise ValueError(
            f"Series have {channels} channels and at most {longest} step(s) in (C, L) layout: are "
            f"channels and time swapped? Transpose each series to (C, L)."
        )


def _padded(
    series: list[Series], missing: Missing
) -> tuple[Float64[np.ndarray, "n C L"], Bool[np.ndarray, "n L"]]:
    """Apply the missing-value policy to each series and pad with zeros to the longest."""
    series = [s[:, : _length(s)] for s in series]
    _refuse_values(series, np.isinf, "inf", "Remove or replace infinite values.")
    if missing == "error":
        cure = 'Fill missing values, or pass missing="mask" or missing="interpolate".'
        _refuse_values(series, np.isnan, "NaN", cure)
    longest = max(s.shape[1] for s in series)
    values = np.zeros((len(series), series[0].shape[0], longest))
    mask = np.zeros((len(series), longest), dtype=bool)
    for i, s in enumerate(series):
        filled = _interpolated(s, i) if missing == "interpolate" else s
        real = ~np.isnan(filled).any(axis=0)
        if not real.any():
            raise SeriesError(f"Series {i} has no real time step (it is empty or only NaN).", i)
        values[i, :, : s.shape[1]] = np.where(real, filled, 0.0)
        mask[i, : s.shape[1]] = real
    return values, mask


def _length(series: Series) -> int:
    """Steps left when those that are NaN in every channel are cut off the end."""
    known = np.flatnonzero(~np.isnan(series).all(axis=0))
    return int(known[-1]) + 1 if known.size else 0


def _refuse_values(series: list[Series], is_bad: np.ufunc, word: str, cure: str) -> None:
    """Raise if any value is bad, naming how many and the first (series, channel, time)."""
    counts = [int(is_bad(s).sum()) for s in series]
    if not any(counts):
        return
    first = next(i for i, count in enumerate(counts) if count)
    channel, time = np.argwhere(is_bad(series[first]))[0]
    raise SeriesError(
        f"Input X contains {word}: {sum(counts)} value(s), the first in series {first}, "
        f"channel {channel}, time {time}. {cure}",
        first,
    )


def _interpolated(series: Series, index: int) -> Series:
    """Fill NaN by straight lines between known values, constant beyond the outermost ones."""
    filled = series.copy()
    time = np.arange(series.shape[1])
    for channel, row in enumerate(filled):
        known = ~np.isnan(row)
        if not known.any():
            raise SeriesError(
                f"Series {index} has only NaN in channel {channel}: nothing to interpolate.", index
            )
        row[~known] = np.interp(time[~known], time[known], row[known])
    return filled


def _as_labels(y: Any, n: int) -> NDArray[Any]:
    """Copy labels into a (n,) array of their own dtype; none may be missing."""
    labels = np.array(y)
    if labels.ndim != 1:
        raise ValueError(f"y should be a 1d array, got an array of shape {labels.shape} instead.")
    if len(labels) != n:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: [{n}, {len(labels)}]."
        )
    if labels.dtype.kind not in "biufUSO":
        raise ValueError(f"Labels must be numbers or text, got dtype {labels.dtype}.")
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise ValueError("Input y contains inf.")
    absent = [i for i, label in enumerate(labels.tolist()) if _is_absent(label)]
    if absent:
        raise ValueError(
            f"Input y contains NaN or None: {len(absent)} label(s), the first at index {absent[0]}."
        )
    return labels


def _is_absent(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' <NA> (which has no truth value)."""
    return label is None or type(label).__name__ == "NAType" or bool(label != label)
