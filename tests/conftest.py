"""Settings shared by every test."""

import os
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, settings

from lagformer import cli

Call = Callable[..., tuple[int, str, str]]

# Two workers on two cores: one thread each, or they fight for the cores.
torch.set_num_threads(1)
os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile(
    "lagformer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("lagformer")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lagformer", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


def refused(result: tuple[int, str, str], text: str) -> None:
    """Assert that a call ended with one line that says `text`, and exit code 2."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert text in err
