"""aeon's classifiers under our protocol; skipped where aeon is not installed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lagformer.outcomes import read_outcome
from lagformer.peers import PEERS, fit_peer, require_aeon, run_peer
from lagformer.training.queue import Task, run_queue

pytest.importorskip("aeon")


def sines(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = np.arange(n) % 2
    phase = 6.28 * rng.random((n, 1))
    X = np.sin(phase + np.arange(40) * (0.4 + 0.5 * targets[:, None]))
    return (X + 0.1 * rng.normal(size=X.shape))[:, None], targets


@pytest.fixture(autouse=True)
def _global_states() -> Iterator[None]:
    """aeon seeds the global generators and sets torch's threads."""
    threads, state = torch.get_num_threads(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)
    np.random.set_state(state)  # noqa: NPY002


@pytest.mark.parametrize("name", [name for name in PEERS if name != "multirocket-hydra"])
def test_a_peer_learns_and_says_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    require_aeon()
    (train, targets), (unseen, truth) = sines(40, 0), sines(30, 1)
    outcome = fit_peer(name, 0, targets, train, unseen)
    assert np.mean(np.array(outcome.predicted) == truth) > 0.9
    assert outcome.predicted == fit_peer(name, 0, targets, train, unseen).predicted
    assert outcome.parameters == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_peer_in_a_process_of_its_own_keeps_its_outcome(tmp_path: Path) -> None:
    (train, targets), (unseen, truth) = sines(40, 0), sines(30, 1)
    epochs: list[str] = []
    task = Task("m", run_peer, ("multirocket-hydra", 0, tmp_path / "m", targets, train, unseen))
    outcomes = run_queue([task], jobs=1, on_epoch=lambda name, _: epochs.append(name))
    assert np.mean(np.array(outcomes["m"].predicted) == truth) > 0.9
    assert read_outcome(tmp_path / "m", probabilities=False) == outcomes["m"]
    assert epochs == ["m"]
