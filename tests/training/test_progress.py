"""Nothing in a pipe unless asked; then a few plain lines, not a wall."""

import io
import sys

import pytest

from lagformer.training.progress import progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(shown: bool | None, steps: int = 80) -> None:
    with progress_line(steps, shown=shown) as update:
        for done in range(1, steps + 1):
            update(done, f"epoch [{done}]")


@pytest.mark.parametrize("shown", [None, False])
def test_silent_in_a_pipe(shown: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    run(shown)
    assert capsys.readouterr() == ("", "")


def test_a_line_per_tenth_in_a_pipe_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    run(True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 11
    assert lines[0] == "epoch [1]: 1%"
    assert lines[5].startswith("epoch [40]: 50%, ")
    assert lines[5].endswith(" s left")


def test_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    run(None)
    text = terminal.getvalue()
    assert "epoch [80]" in text, "markup must not swallow the brackets"
    assert "left" in text


def test_off_means_off_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(False)
    assert terminal.getvalue() == ""
