"""What the figures share: size, colours, caption, saving.

A figure is 7 inches wide, the text width of a page, so its 9 and 10 point letters print at that
size. matplotlib is used through its objects alone: no state is left behind in `pyplot`.
"""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lagformer.training.checkpoint import write_atomically

# Okabe & Ito 2008: told apart by colour-blind eyes, and in grey by the markers and dashes.
BLACK, GREY = "#000000", "#7f7f7f"
BLUE, RED, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"

CAPTION_COLUMNS = 98


def new_figure(
    title: str, caption: str, *, columns: int = 1, rows: int = 1, height: float = 3.8
) -> tuple[Figure, list[Axes]]:
    """Return a titled figure of `height` inches with its panels, row by row."""
    figure = Figure(figsize=(7, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    figure.supxlabel(textwrap.fill(caption, CAPTION_COLUMNS), x=0.01, ha="left", fontsize=9)
    panels: NDArray[Any] = figure.subplots(rows, columns, squeeze=False)
    axes: list[Axes] = list(np.ravel(panels))
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
    return figure, axes


def legend_below(panel: Axes, **options: Any) -> None:
    """Explain the lines under the x axis, where the legend covers nothing."""
    panel.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=9, frameon=False, **options
    )


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all. Equal figures give equal bytes."""
    image = io.BytesIO()
    figure.savefig(
        image, format="png", dpi=140, metadata={"Software": None}, pil_kwargs={"optimize": True}
    )
    write_atomically(path, image.getvalue())
