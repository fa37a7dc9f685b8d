"""The page of a scan: what the model hears in a long recording, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lagformer.report.page import environment, write_page
from lagformer.report.svg import Plot
from lagformer.scan import ScannedWindow

_LISTED = 500  # stretches in the table
_NAMED = 5  # windows to listen to


@dataclass(frozen=True)
class Stretch:
    """Neighbouring windows of one label."""

    label: Any
    start: float
    end: float
    """First sample and the one after the last; seconds where the rate is known."""
    windows: int
    mean: float
    least: float
    """Of the probabilities of its windows."""


def stretches(windows: Sequence[ScannedWindow]) -> list[Stretch]:
    """Join neighbouring windows of equal label."""
    unit = windows[0].rate or 1.0
    found = []
    for label, group in groupby(windows, key=lambda w: w.label):
        run = list(group)
        p = [w.probability for w in run]
        end = (run[-1].start + run[-1].length) / unit
        found.append(Stretch(label, run[0].start / unit, end, len(run), float(np.mean(p)), min(p)))
    return found


def timeline_page(
    windows: Sequence[ScannedWindow], *, recording: str, model: str, interrupted: bool = False
) -> str:
    """Return the page of a scan of `recording`, a file or "-". ValueError for no window."""
    recording = "standard input" if recording == "-" else Path(recording).name
    if not windows:
        raise ValueError(f"no window of {recording} was complete: there is nothing to draw")
    unit = windows[0].rate or 1.0
    found = stretches(windows)
    limits = (found[0].start, max(s.end for s in found))
    axis = "sample" if windows[0].rate is None else "time in seconds"
    by_label = sorted({w.label for w in windows})
    rows = []
    for label in by_label:
        own = [s for s in found if s.label == label]
        count = sum(s.windows for s in own)
        strip = Plot(
            f"Where the label is {label}: {len(own)} stretches of {count} windows.",
            limits,
            (0, 1),
            ticks=(0, 0),
        )
        strip.spans([(s.start, s.end) for s in own], 0.5, "stretch")
        rows.append(
            {"label": label, "windows": count, "share": count / len(windows), "plot": strip}
        )
    p = np.array([w.probability for w in windows])
    curve = Plot(
        f"Probability of the label over time, from {p.min():.2f} to {p.max():.2f}.",
        limits,
        (0, 1),
        x_label=axis,
        y_label="probability",
    )
    centres = [(w.start + w.length / 2) / unit for w in windows]
    curve.line(centres, p, "main")
    if len(windows) == 1:
        curve.dots(centres, p, "main")
    unsure = [windows[i] for i in np.argsort(p, kind="stable")[:_NAMED]]
    return (
        environment()
        .get_template("timeline.html.j2")
        .render(
            recording=recording,
            model=model,
            interrupted=interrupted,
            windows=len(windows),
            length=windows[0].length,
            hop=windows[1].start - windows[0].start if len(windows) > 1 else None,
            rate=windows[0].rate,
            limits=limits,
            seconds=windows[0].rate is not None,
            rows=rows,
            curve=curve,
            stretches=found[:_LISTED],
            left_out=max(0, len(found) - _LISTED),
            changes=len(found) - 1,
            unsure=[{"at": w.start / unit, "label": w.label, "p": w.probability} for w in unsure],
        )
    )


def write_timeline(
    windows: Sequence[ScannedWindow],
    path: Path,
    *,
    recording: str,
    model: str,
    interrupted: bool = False,
) -> None:
    """Write that page to `path`, whole or not at all. ValueError as `timeline_page`."""
    page = timeline_page(windows, recording=recording, model=model, interrupted=interrupted)
    write_page(page, path)
