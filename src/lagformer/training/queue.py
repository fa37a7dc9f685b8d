"""Several trainings at once, each in a process of its own with one thread.

On a few cores two models side by side take less time than one after the other on all cores, and a
fixed thread count makes the numbers independent of how many run at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from lagformer.training.history import EpochRecord
from lagformer.training.loop import OnEpoch


@dataclass(frozen=True)
class Task:
    """A training to run: `function(*arguments, on_epoch)` in a fresh process.

    The function must be importable, arguments and result must pickle; work that outlives a crash
    is up to the function (`fit`'s folder).
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def run_queue(
    tasks: Sequence[Task],
    *,
    jobs: int,
    on_epoch: Callable[[str, EpochRecord], None] | None = None,
) -> dict[str, Any]:
    """Run the tasks in order, `jobs` at a time; return each one's result by name.

    `on_epoch(name, record)` is called here, in the calling process, for every epoch of any task.
    Processes are spawned, so a script that calls this needs the usual `__main__` guard. The first
    failure (or Ctrl-C) ends the other processes: a ValueError or OSError of a task is raised
    again with its message, a process that dies without a word is a ChildProcessError.
    Raises ValueError for jobs < 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be ≥ 1, got {jobs}")
    waiting = list(tasks)
    running: dict[Connection, tuple[Task, BaseProcess]] = {}
    results: dict[str, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                connection, process = _start(waiting[0])
                running[connection] = (waiting.pop(0), process)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                task, process = running[ready]
                try:
                    kind, content = ready.recv()
                except EOFError:
                    process.join()
                    raise ChildProcessError(
                        f"the process training {task.name} died (exit code {process.exitcode}); "
                        "the same command again resumes"
                    ) from None
                if kind == "error":
                    raise content
                if kind == "epoch":
                    if on_epoch is not None:
                        on_epoch(task.name, content)
                else:
                    results[task.name] = content
                    del running[ready]
                    process.join()
                    ready.close()
        return results
    finally:
        for connection, (_, process) in running.items():
            process.kill()  # every write is atomic: no moment is a bad one
            process.join()
            connection.close()


def _start(task: Task) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")  # fork is not safe once torch has threads
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, task), daemon=True)
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C is for the parent, which ends its children: they inherit "ignored" from birth on.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.start()
        signal.signal(signal.SIGINT, handler)
    else:
        process.start()
    theirs.close()  # so that the child's end is the only one, and its death an EOFError here
    return ours, process


def _work(connection: Connection, task: Task) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    on_epoch: OnEpoch = lambda record: connection.send(("epoch", record))  # noqa: E731
    try:
        result = task.function(*task.arguments, on_epoch)
    except (ValueError, OSError) as error:
        connection.send(("error", error))
    else:
        connection.send(("result", result))


def _end_with_parent() -> None:
    """Die at once when the parent does: the next run must not meet a writer in its folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
