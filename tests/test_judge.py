"""The public coding judge on the library's own function, unchanged."""

import json
import re
from pathlib import Path

import pytest
import torch
import torch_judge.progress
from torch_judge import check

# The judge finds it in this module.
from lagformer.attention import linear_attention


@pytest.fixture(autouse=True)
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The judge keeps a file of solved exercises; its tests seed the global generator."""
    path = tmp_path / "progress.json"
    monkeypatch.setattr(torch_judge.progress, "PROGRESS_PATH", str(path))
    with torch.random.fork_rng():
        yield path


def count_passed(printed: str) -> tuple[int, int]:
    """(tests passed, tests run) as the judge prints them."""
    if found := re.search(r"All (\d+) tests passed", printed):
        return int(found[1]), int(found[1])
    found = re.search(r"(\d+)/(\d+) tests passed", printed)
    assert found, printed
    return int(found[1]), int(found[2])


def status(progress: Path) -> str:
    return json.loads(progress.read_text())["linear_attention"]["status"]


def test_judge_passes_our_function(capsys: pytest.CaptureFixture[str], progress: Path) -> None:
    check("linear_attention")
    printed = capsys.readouterr().out
    assert count_passed(printed) == (4, 4)
    assert len(re.findall(r"✅ \[\d/4\]", printed)) == 4
    assert "❌" not in printed
    assert "💥" not in printed
    assert status(progress) == "solved"


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        ("Q", 2),  # wrong shape, and no gradient for K and V
        ("linear_attention(Q, K, V) / 0", 3),  # not finite
        ("linear_attention(Q, K, V.detach())", 3),  # no gradient for V
        ("missing", 0),
    ],
)
def test_judge_fails_a_wrong_function(
    body: str, passed: int, capsys: pytest.CaptureFixture[str], progress: Path
) -> None:
    namespace = {"check": check, "ours": linear_attention}
    code = f"linear_attention = lambda Q, K, V: {body.replace('linear_attention', 'ours')}\n"
    exec(code + "check('linear_attention')", namespace)
    assert count_passed(capsys.readouterr().out) == (passed, 4)
    assert status(progress) == "attempted"
