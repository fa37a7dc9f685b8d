"""Small line charts as inline SVG: sharp at any width, letters of one size, colours from the page.

A plot's `<svg>` is its data area, as wide as the page allows; ticks and labels lie in the margins
the style sheet leaves around it. Everything is placed in per cent, so nothing but the curves is
stretched. Colours are classes of the style sheet: they follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

_POINTS = 600  # columns a curve is drawn with at most, each by its extremes
_GRID = 1000  # units of the curves' own coordinates


class Plot:
    """A chart that is built up in drawing order; `Markup(plot)` or `{{ plot }}` is its SVG.

    Args:
        description: what it shows, for those who do not see it.
        x, y: ranges (low, high) of the axes.
        x_label, y_label: names of the axes; "" for none.
        ticks: (x, y), each about how many, 0 for none, or the values themselves.
    """

    def __init__(
        self,
        description: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_label: str = "",
        y_label: str = "",
        ticks: tuple[int | Sequence[float], int | Sequence[float]] = (5, 4),
    ) -> None:
        self.description = description
        self.x, self.y = _wide(x), _wide(y)
        self._parts: list[Markup] = []
        for value in _ticks(self.y, ticks[1]):
            at = self._y(value)
            self._add('<line class="grid" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>', at)
            self._add('<text class="tick y" x="-6" y="{}%" dy="4">{}</text>', at, _number(value))
        for value in _ticks(self.x, ticks[0]):
            self._add('<text class="tick x" x="{}%" y="100%" dy="16">{}</text>',
                      self._x(value), _number(value))  # fmt: skip
        self._add('<line class="axis" x1="0" x2="100%" y1="100%" y2="100%"/>')
        if x_label:
            self._add('<text class="label x" x="50%" y="100%" dy="33">{}</text>', x_label)
        if y_label:
            self._add('<text class="label y" x="-40" y="0" dy="-9">{}</text>', y_label)

    def line(self, x: ArrayLike, y: ArrayLike, style: str) -> None:
        """Draw a curve; NaN interrupts it. Long ones are thinned to the extremes they reach."""
        xs, ys = thinned(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
        path, pen = [], "M"
        for a, b in zip(xs, ys, strict=True):
            if math.isnan(b):
                pen = "M"
                continue
            path.append(f"{pen}{self._x(a) * _GRID / 100:.4g} {self._y(b) * _GRID / 100:.4g}")
            pen = "L"
        self._curve(" ".join(path), style)

    def dots(self, x: ArrayLike, y: ArrayLike, style: str, radius: float = 3.5) -> None:
        """Draw a circle at each point."""
        for a, b in zip(np.atleast_1d(x), np.atleast_1d(y), strict=True):
            self._add('<circle class="{}" cx="{}%" cy="{}%" r="{}"/>',
                      style, self._x(a), self._y(b), radius)  # fmt: skip

    def box(self, x: tuple[float, float], style: str, y: tuple[float, float] | None = None) -> None:
        """Fill a rectangle, over the whole height unless y is given."""
        left, right = self._x(x[0]), self._x(x[1])
        low, high = y or self.y
        self._add(
            '<rect class="{}" x="{}%" y="{}%" width="{}%" height="{}%"/>',
            style, left, self._y(high), _fixed(right - left), _fixed(self._y(low) - self._y(high)),
        )  # fmt: skip

    def spans(self, spans: Sequence[tuple[float, float]], y: float, style: str) -> None:
        """Draw stretches of the x axis at one height; none is too short to be seen."""
        scale, path = _GRID / 100, ""
        for a, b in spans:
            width = max(self._x(b) - self._x(a), 0.1)
            path += f"M{self._x(a) * scale:.4g} {self._y(y) * scale:g}h{width * scale:.4g}"
        self._curve(path, style)

    def segment(self, x: tuple[float, float], y: tuple[float, float], style: str) -> None:
        """Draw a straight line between two points."""
        self._add('<line class="{}" x1="{}%" x2="{}%" y1="{}%" y2="{}%"/>', style,
                  *map(self._x, x), *map(self._y, y))  # fmt: skip

    def text(self, x: float, y: float, words: str, style: str = "note") -> None:
        """Write words at a point; the style sheet decides on which side of it."""
        self._add(
            '<text class="{}" x="{}%" y="{}%">{}</text>', style, self._x(x), self._y(y), words
        )

    def _curve(self, path: str, style: str) -> None:
        """Add a path in coordinates of its own, stretched to the plot."""
        self._add(
            '<svg class="curve" viewBox="0 0 {0} {0}" preserveAspectRatio="none" width="100%" '
            'height="100%"><path class="{1}" d="{2}"/></svg>',
            _GRID,
            style,
            path,
        )

    def __html__(self) -> str:
        """Return the SVG, as templates and `Markup` take it."""
        opening = Markup('<svg class="plot" role="img" aria-label="{}">')
        return opening.format(self.description) + Markup("").join(self._parts) + Markup("</svg>")

    def _add(self, template: str, *values: object) -> None:
        self._parts.append(Markup(template).format(*values))

    def _x(self, value: float) -> float:
        return _fixed(100 * (value - self.x[0]) / (self.x[1] - self.x[0]))

    def _y(self, value: float) -> float:
        return _fixed(100 * (self.y[1] - value) / (self.y[1] - self.y[0]))


def heat_map(shares: NDArray[np.float64], description: str) -> Markup:
    """Draw a square matrix of shares in [0, 1], row 0 on top; zeros stay empty."""
    n = len(shares)
    cells = [
        Markup('<rect class="heat" x="{}" y="{}" width="1" height="1" fill-opacity="{}"/>').format(
            column, row, _fixed(0.15 + 0.85 * shares[row, column])
        )
        for row, column in np.argwhere(shares > 0)
    ]
    frame = Markup('<svg class="matrix" role="img" aria-label="{0}" viewBox="0 0 {1} {1}">')
    diagonal = Markup('<line class="diagonal" x1="0" y1="0" x2="{0}" y2="{0}"/>').format(n)
    return frame.format(description, n) + Markup("").join(cells) + diagonal + Markup("</svg>")


def thinned(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return at most 2 · 600 points: the lowest and highest of each stretch, in order of time."""
    if len(x) <= 2 * _POINTS:
        return x, y
    edges = np.linspace(0, len(x), _POINTS + 1).astype(int)
    kept: list[int] = []
    for start, stop in pairwise(edges):
        part = y[start:stop]
        if np.isnan(part).all():
            kept.append(start)
        else:
            kept += sorted({start + int(np.nanargmin(part)), start + int(np.nanargmax(part))})
    return x[kept], y[kept]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten apart) in [low, high]."""
    if count < 1:
        return []
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= 0.6 * rough)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _ticks(limits: tuple[float, float], wanted: int | Sequence[float]) -> Sequence[float]:
    return nice_ticks(*limits, wanted) if isinstance(wanted, int) else wanted


def padded_range(*arrays: ArrayLike, share: float = 0.06) -> tuple[float, float]:
    """Return the range of all finite values, a little wider."""
    values = np.concatenate([np.ravel(np.asarray(a, dtype=float)) for a in arrays])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = share * (high - low)
    return low - margin, high + margin


def _wide(limits: tuple[float, float]) -> tuple[float, float]:
    """Give a range of a single value some width."""
    low, high = limits
    if high > low:
        return low, high
    half = max(abs(low), 1.0) / 2
    return low - half, high + half


def _number(value: float) -> str:
    """Write a tick: no more digits than it has, a true minus sign."""
    return f"{value:.6g}".replace("-", "−") if value else "0"


def _fixed(value: float) -> float:
    """Round to a hundredth of a per cent: below a pixel."""
    return round(float(value), 2)
