"""Every example runs and prints what it promises."""

import json
import re
import runpy
from pathlib import Path

import pytest
import torch
import torch_judge.progress

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples may seed the global generator and write files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROGRESS_PATH", str(tmp_path / "progress.json"))
    monkeypatch.setattr(torch_judge.progress, "PROGRESS_PATH", str(tmp_path / "progress.json"))
    with torch.random.fork_rng():
        yield


def run_notebook(path: Path) -> None:
    """Run the code cells in order, in one namespace, as a notebook does."""
    notebook = json.loads(path.read_text("utf-8"))
    namespace = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), namespace)


def printed_number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    assert found, printed
    return float(found[1])


def test_attention(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "attention.py"))
    printed = capsys.readouterr().out
    assert "output (2, 4, 1000, 16)" in printed
    # Averages of order 1 over 1000 values in float32.
    assert printed_number(r"at most (\S+) off", printed) < 1e-5


def test_train(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "train.py"))
    assert printed_number(r"unseen series: (\S+)", capsys.readouterr().out) > 0.9


def test_judge(capsys: pytest.CaptureFixture[str]) -> None:
    run_notebook(EXAMPLES / "judge.ipynb")
    printed = capsys.readouterr().out
    assert "All 4 tests passed" in printed
    assert printed_number(r"largest difference: (\S+)", printed) < 1e-14


def test_no_example_is_left_out() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.iterdir() if path.is_file()} <= tested


def test_notebook_is_stored_without_outputs() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        assert all(not c["outputs"] for c in cells if c["cell_type"] == "code"), path
