"""All figures of the guide, written to a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from lagformer.report.figures_cost import cost_figure, measure
from lagformer.report.figures_lags import from_clicks, from_run, lag_figure, lag_kernels
from lagformer.report.figures_theory import elu_figure, rank_figure, taylor_figure, variance_figure
from lagformer.report.style import save


def write_figures(directory: Path, *, run: Path | None = None, seed: int = 0) -> list[Path]:
    """Draw every figure into `directory`, made if need be, and return the PNG files.

    `run` is a folder of `lagformer forda`, whose model's lag kernels are shown; by default a small
    one is trained in a few seconds. `seed` draws points, vectors and that model; only measured
    times differ between two calls. Takes about 20 seconds.

    Raises ValueError, before any work, if nothing can be written to `directory` or `run` holds no
    finished model.
    """
    _claim(directory)
    trained = from_run(run) if run is not None else from_clicks(seed)
    figures: dict[str, Callable[[], Figure]] = {
        "elu": elu_figure,
        "cost": lambda: cost_figure(measure(seed=seed)),
        "rank": lambda: rank_figure(seed),
        "taylor": lambda: taylor_figure(seed),
        "variance": lambda: variance_figure(seed),
        "lags": lambda: lag_figure(lag_kernels(trained, seed=seed), trained.source),
    }
    paths = []
    for name, draw in figures.items():
        paths.append(directory / f"{name}.png")
        save(draw(), paths[-1])
    return paths


def _claim(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise ValueError(
            f"cannot write figures to {directory}: {error.strerror}; choose another folder"
        ) from None
