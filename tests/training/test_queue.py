"""Trainings side by side: results, progress, failures, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lagformer.training.history import EpochRecord
from lagformer.training.queue import Task, run_queue

WORK = """
import os, signal, time
import torch

def square(x, on_epoch):
    for epoch in (1, 2):
        on_epoch({"epoch": epoch})
    return x * x, torch.get_num_threads(), os.getpid()

def refuse(on_epoch):
    raise ValueError("this will not do")

def die(on_epoch):
    os.kill(os.getpid(), signal.SIGKILL)

def last(pid_file, epochs, on_epoch):
    open(pid_file, "w").write(str(os.getpid()))
    while True:
        on_epoch({"epoch": 1})
        time.sleep(0.01 if epochs else 1000)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A module the spawned processes can import."""
    (tmp_path / "queue_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    return __import__("queue_work")


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_results_and_epochs_of_more_tasks_than_processes(work) -> None:  # type: ignore[no-untyped-def]
    seen: list[tuple[str, int]] = []
    tasks = [Task(f"square {x}", work.square, (x,)) for x in (1, 2, 3)]
    results = run_queue(tasks, jobs=2, on_epoch=lambda name, r: seen.append((name, r["epoch"])))
    assert {name: result[0] for name, result in results.items()} == {
        "square 1": 1,
        "square 2": 4,
        "square 3": 9,
    }
    assert {threads for _, threads, _ in results.values()} == {1}
    assert len({pid for *_, pid in results.values()}) == 3
    assert sorted(seen) == [(f"square {x}", epoch) for x in (1, 2, 3) for epoch in (1, 2)]


def test_no_task_needs_no_process() -> None:
    assert run_queue([], jobs=1) == {}


def test_no_process_is_no_option() -> None:
    with pytest.raises(ValueError, match="jobs must be ≥ 1, got 0"):
        run_queue([], jobs=0)


@pytest.mark.parametrize(
    ("failure", "error", "match"),
    [
        ("refuse", ValueError, "^this will not do$"),
        ("die", ChildProcessError, r"training bad died \(exit code -9\); the same command again"),
    ],
)
def test_a_failure_ends_the_others(  # type: ignore[no-untyped-def]
    work, failure: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    tasks = [
        Task("endless", work.last, (str(tmp_path / "pid"), True)),
        Task("bad", getattr(work, failure), ()),
    ]
    with pytest.raises(error, match=match):
        run_queue(tasks, jobs=2)
    pid_file = tmp_path / "pid"
    assert not pid_file.exists() or ended(int(pid_file.read_text()))


def test_an_interrupt_ends_the_processes(work, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def interrupt(name: str, record: EpochRecord) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_queue(
            [Task("endless", work.last, (str(tmp_path / "pid"), True))], jobs=1, on_epoch=interrupt
        )
    assert ended(int((tmp_path / "pid").read_text()))


def test_a_process_does_not_outlive_its_parent(work, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pid_file = tmp_path / "pid"
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from queue_work import last\n"
        "from lagformer.training.queue import Task, run_queue\n"
        "if __name__ == '__main__':\n"
        f"    run_queue([Task('endless', last, ({str(pid_file)!r}, False))], jobs=1)\n"
    )
    (tmp_path / "parent.py").write_text(script)
    process = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")])
    while not pid_file.exists() or not pid_file.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(600):
        if ended(int(pid_file.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("the child still runs")
