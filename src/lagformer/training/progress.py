"""One progress line with the time left: on a terminal, or in a pipe when asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

Update = Callable[[float, str], None]


@contextmanager
def progress_line(total: float, *, shown: bool | None = None) -> Iterator[Update]:
    """Yield `update(done, text)`, which redraws one line on stderr until the block ends.

    `shown=None` draws on a terminal only. `shown=True` in a pipe prints a plain line at each tenth
    of the way instead. `done` counts up to `total`; the first call may start above 0 (a resumed
    run) without spoiling the estimate.
    """
    terminal = sys.stderr.isatty()
    if shown is False or (shown is None and not terminal):
        yield lambda done, text: None
    elif terminal:
        columns = (
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn(  # last, so that a narrow terminal cuts off nothing else
                "{task.description}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
        )
        with Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            expand=True,
            speed_estimate_period=300,
        ) as progress:
            task = progress.add_task("", total=total)
            yield lambda done, text: progress.update(task, completed=done, description=text)
    else:
        yield _plain_lines(total)


def _plain_lines(total: float) -> Update:
    start: tuple[float, float] | None = None
    printed = -1

    def update(done: float, text: str) -> None:
        nonlocal start, printed
        now = time.monotonic()
        start = start or (now, done)
        if int(10 * done / total) > printed:
            printed = int(10 * done / total)
            speed = (done - start[1]) / (now - start[0]) if done > start[1] else 0.0
            left = f", {(total - done) / speed:.0f} s left" if speed else ""
            print(f"{text}: {done / total:.0%}{left}", file=sys.stderr, flush=True)

    return update
