"""The charts of the pages: each function turns results into a `Plot`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lagformer.data import Collection
from lagformer.report.kernels import HeadKernel
from lagformer.report.reliability import Reliability
from lagformer.report.subject import Curve
from lagformer.report.svg import Plot, nice_ticks, padded_range

CHANNELS = 4  # of a series that are drawn


def loss_plot(curves: Sequence[Curve]) -> Plot:
    """Draw the training loss per epoch, the first curve on top, and its validation loss."""
    losses = [[r["train_loss"] for r in c.records] for c in curves]
    records = curves[0].records
    held_out = [r.get("validation_loss", np.nan) for r in records]
    epochs = max(max(len(c.records), c.epochs or 0) for c in curves)
    plot = Plot(
        f"Training loss over {len(records)} epochs, {losses[0][0]:.3f} to {losses[0][-1]:.3f}.",
        (0, epochs),
        padded_range(*losses, held_out),
        x_label="epoch",
        y_label="loss",
    )
    for loss in losses[:0:-1]:
        plot.line(range(1, len(loss) + 1), loss, "faint")
    at = [r["epoch"] for r in records]
    plot.line(at, held_out, "second")
    plot.line(at, losses[0], "main")
    if len(at) == 1:
        plot.dots(at, losses[0], "main")
    return plot


def validation_plot(curve: Curve) -> Plot | None:
    """Draw macro F1 on the held-out series per epoch, the best one marked; None without any."""
    scored = [r for r in curve.records if "validation_macro_f1" in r]
    if not scored:
        return None
    at = [r["epoch"] for r in scored]
    f1 = [r["validation_macro_f1"] for r in scored]
    best = int(np.argmax(f1))
    plot = Plot(
        f"Validation macro F1 over {len(at)} epochs; best {f1[best]:.3f} in epoch {at[best]}.",
        (0, max(len(curve.records), curve.epochs or 0)),
        padded_range(f1),
        x_label="epoch",
        y_label="validation macro F1",
    )
    plot.line(at, f1, "second")
    plot.dots(at[best], f1[best], "second")
    return plot


def reliability_plot(found: Reliability) -> Plot:
    """Draw accuracy against confidence; on the diagonal they agree."""
    low = min([b.interval[0] for b in found.bins] + [b.confidence for b in found.bins])
    limits = (float(np.floor(low * 10) / 10), 1.0)
    plot = Plot(
        "Accuracy against mean confidence in "
        + ", ".join(f"{b.confidence:.2f}: {b.accuracy:.2f}" for b in found.bins)
        + ".",
        limits,
        limits,
        x_label="confidence",
        y_label="accuracy",
    )
    plot.segment(limits, limits, "diagonal")
    for b in found.bins:
        plot.segment((b.confidence, b.confidence), b.interval, "whisker")
    confidence, accuracy = [b.confidence for b in found.bins], [b.accuracy for b in found.bins]
    plot.line(confidence, accuracy, "thin")
    plot.dots(confidence, accuracy, "main")
    return plot


def series_plots(data: Collection, index: int, spans: Sequence[tuple[int, int]]) -> list[Plot]:
    """Draw a series, one strip for each of its first channels, with the marked spans shaded."""
    length = int(data.lengths[index])
    time = np.arange(length)
    plots = []
    shown = data.values[index, :CHANNELS, :length]
    for channel, values in enumerate(shown):
        known = np.where(data.mask[index, :length], values, np.nan)
        last = channel == len(shown) - 1
        where = ", ".join(f"{a} to {b - 1}" for a, b in spans)
        plot = Plot(
            f"Channel {channel + 1} of series {data.names[index]}, {length} samples; "
            f"marked: {where}.",
            (0, length),
            padded_range(known),
            x_label="sample" if last else "",
            y_label=f"channel {channel + 1}" if data.values.shape[1] > 1 else "",
            ticks=(5 if last else 0, 2 if len(shown) > 1 else 3),
        )
        for a, b in spans:
            plot.box((a - 0.5, b - 0.5), "marked")
        plot.line(time, known, "signal")
        for a, b in spans:
            plot.line(time[a:b], known[a:b], "signal marked")
        if length == 1:
            plot.dots(time, known, "main")
        plots.append(plot)
    return plots


def kernel_plot(kernel: HeadKernel, limits: tuple[float, float]) -> Plot:
    """Draw a head's weight for every lag, with the band of an untrained one."""
    words = f"Lag kernel of block {kernel.block}, head {kernel.head}"
    at = kernel.lags[int(kernel.weight.argmax())]
    ends = nice_ticks(float(kernel.lags[0]), float(kernel.lags[-1]), 4)
    plot = Plot(
        f"{words}: heaviest at lag {at:.0f} samples, {kernel.weight.max():.2f} times the mean.",
        (float(kernel.lags[0]), float(kernel.lags[-1])),
        limits,
        ticks=([ends[0], 0.0, ends[-1]], 3),
    )
    if kernel.untrained is not None:
        plot.box(plot.x, "band", kernel.untrained)
    plot.segment((0, 0), limits, "grid")
    plot.line(kernel.lags, kernel.weight, "main")
    return plot
