"""The UCR benchmark: what is run once, what the tables hold, what the report says."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lagformer.outcomes import Outcome
from lagformer.training.queue import Task

FOLDER = Path(__file__).parents[2] / "benchmarks"


def write_set(folder: Path, name: str, train: list[list[float]], test: list[list[float]]) -> None:
    """Rows are a label and the samples; NaN at the end makes a series shorter."""
    for part, rows in (("TRAIN", train), ("TEST", test)):
        text = "\n".join("\t".join(map(str, row)) for row in rows)
        (folder / f"{name}_{part}.tsv").write_text(text + "\n")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, length in (("Even", 16), ("Long", 24)):
        rows = [[i % 2, *(rng.normal(size=length) + 3 * (i % 2))] for i in range(16)]
        write_set(folder, name, rows[:8], rows[8:])
    nan = float("nan")
    write_set(
        folder,
        "Ragged",
        [[0, 1, nan, 3, 4, nan, nan], [1, 5, 6, 7, 8, 9, nan], [1, 0, 0, 0, 0, 0, nan]],
        [[1, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, nan]],
    )
    write_set(folder, "Single", [[0, 1, 2], [1, 2, 1]], [[0, 1, 2]])
    monkeypatch.setenv("LAGFORMER_DATA", str(folder))
    monkeypatch.setattr("lagformer.data.ucr.find_spec", lambda name: None)
    return folder


@pytest.fixture
def ucr(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    module = import_module("ucr")

    def run_here(tasks: list[Task], *, jobs: int) -> None:
        for task in tasks:
            task.function(*task.arguments, lambda record: None)

    monkeypatch.setattr(module, "run_queue", run_here)
    monkeypatch.setattr(module, "require_aeon", lambda: None)
    return module


@pytest.fixture
def main(
    ucr: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Run the script in this process: (exit code, stdout)."""

    def call(*arguments: object) -> tuple[int, str]:
        folders = ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["ucr.py", *map(str, arguments), *folders])
        return ucr.main(), capsys.readouterr().out

    return call


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_sets_are_described_by_their_data(ucr: ModuleType) -> None:
    found = [ucr.describe(name) for name in ("Even", "Ragged", "Single")]
    assert [list(row.values()) for row in found] == [
        ["Even", 8, 8, 16, 1, 2, True],
        ["Ragged", 3, 2, 6, 1, 2, False],
        ["Single", 2, 1, 2, 1, 2, False],
    ]


def test_peers_get_gaps_interpolated_and_the_last_value_held(
    ucr: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def fake(*arguments: Any) -> Outcome:
        given.extend(arguments)
        return Outcome([1, 0], 0, 1.5, 0.5)

    monkeypatch.setattr(ucr, "fit_peer", fake)
    result = ucr.measure("Ragged", "minirocket", 7)
    method, seed, targets, train, test = given
    assert (method, seed, targets.tolist()) == ("minirocket", 7, [0, 1, 1])
    assert train[:, 0].tolist() == [[1, 2, 3, 4, 4, 4], [5, 6, 7, 8, 9, 9], [0] * 6]
    assert test[:, 0].tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 5]]
    assert result == {"accuracy": 1, "macro_f1": 1, "fit_seconds": 1.5, "predict_seconds": 0.5}


def fake_measure(name: str, method: str, seed: int) -> dict[str, float]:
    accuracy = {"lagformer": 0.9, "minirocket": 0.8, "hydra": 0.7}[method] + seed / 100
    return {"accuracy": accuracy, "macro_f1": 0.5, "fit_seconds": 2.0, "predict_seconds": 1.0}


def test_runs_resume_and_fill_the_tables(
    ucr: ModuleType,
    main: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[tuple[str, str, int]] = []

    def first(name: str, method: str, seed: int) -> dict[str, float]:
        measured.append((name, method, seed))
        if (name, method) == ("Even", "minirocket"):
            raise RuntimeError("broken")
        return fake_measure(name, method, seed)

    monkeypatch.setattr(ucr, "measure", first)
    options = ["--methods", "lagformer,minirocket", "--sets", "Even,Long", "--seeds", "0,2"]
    code, out = main(*options)
    assert code == 1
    assert "Even minirocket 0: RuntimeError: broken" in out
    assert "6 of 8 runs are there" in out
    assert [name for name, *_ in measured] == ["Long"] * 4 + ["Even"] * 4  # the largest first

    again: list[tuple[str, str, int]] = []

    def second(*key: Any) -> dict[str, float]:
        again.append(key)
        return fake_measure(*key)

    monkeypatch.setattr(ucr, "measure", second)
    assert main(*options) == (0, "Even minirocket 0: accuracy 0.8000, 2.0 s to fit\n"
        "Even minirocket 2: accuracy 0.8200, 2.0 s to fit\n"
        "8 of 8 runs are there; left: none\n")  # fmt: skip
    assert again == [("Even", "minirocket", 0), ("Even", "minirocket", 2)]
    assert table(tmp_path / "out" / "minirocket_accuracy.csv") == [
        ["dataset", "0", "2"],
        ["Even", "0.8", "0.8200000000000001"],
        ["Long", "0.8", "0.8200000000000001"],
        ["Ragged", "", ""],
        ["Single", "", ""],
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sets.csv"} | {
        f"{method}_{metric}.csv" for method in ("lagformer", "minirocket") for metric in ucr.METRICS
    }


def test_a_spent_budget_starts_nothing(
    ucr: ModuleType, main: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucr, "measure", None)
    code, out = main("--methods", "lagformer", "--budget-seconds", -1)
    assert code == 1
    assert out.startswith("0 of 4 runs are there; left: ['Long lagformer 0'")


def test_the_report_averages_what_all_methods_have_on_regular_sets(
    ucr: ModuleType,
    main: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ucr, "measure", fake_measure)
    assert main("--report")[0] == 2
    main("--methods", "lagformer,minirocket,hydra", "--seeds", "0,2")
    (tmp_path / "published.csv").write_text("dataset,ROCKET,HC2\nEven,0.5,0.6\nLong,,0.8\n")
    code, out = main("--report", "--published", tmp_path / "published.csv")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["2", "sets", "are", "regular"] in lines
    for name, mean in (("lagformer", "0.9100"), ("minirocket", "0.8100"), ("hydra", "0.7100")):
        assert [name, mean] in lines
    assert ["ROCKET", "(published)", "0.5000"] in lines
    assert ["HC2", "(published)", "0.6000"] in lines  # on Even alone: ROCKET lacks Long
    for name in ("scatter.png", "scatter_published.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_critical_differences_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aeon")
    monkeypatch.syspath_prepend(FOLDER)
    module = import_module("ucr_report")
    sets = [str(i) for i in range(12)]
    rng = np.random.default_rng(0)
    group = {
        name: dict(zip(sets, mean + 0.01 * rng.random(12), strict=True))
        for name, mean in (("best", 0.9), ("middle", 0.8), ("worst", 0.7))
    }
    figure = module.critical_differences(group, sets)
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"best", "middle", "worst", "1.0000", "2.0000", "3.0000"} <= texts


@pytest.mark.slow
def test_the_command_runs_ours_in_processes_of_their_own(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "ucr.py"), "--methods", "lagformer", "--sets", "Even"]
    command += ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "run" / "Even-lagformer-0.json").read_text())
    assert (result["dataset"], result["method"], result["seed"]) == ("Even", "lagformer", 0)
    assert result["accuracy"] * 8 in range(9)
    assert float(dict(table(tmp_path / "out" / "lagformer_fit_seconds.csv"))["Even"]) > 0
