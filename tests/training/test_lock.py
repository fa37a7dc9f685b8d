"""One process at a time in a folder, and no lock outlives its process."""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lagformer.training.lock import alone_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
BUSY = "is in use by another process"


def hold(folder: Path, pipe: Connection) -> None:
    """Hold the folder until told to leave."""
    try:
        with alone_in(folder):
            (folder / "mine").touch()
            pipe.send("in")
            pipe.recv()
    except ValueError as error:
        pipe.send(str(error))


def start(folder: Path) -> tuple[multiprocessing.Process, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(folder, theirs))
    process.start()
    return process, ours


def test_a_second_process_is_refused_until_the_first_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    first, pipe = start(folder)
    assert pipe.recv() == "in"
    with pytest.raises(ValueError, match=BUSY) as raised, alone_in(folder):
        pytest.fail("two are in")
    assert str(folder) in str(raised.value)
    second, other = start(folder)
    assert BUSY in other.recv()
    second.join()
    pipe.send("leave")
    first.join()
    with alone_in(folder):
        assert [path.name for path in folder.iterdir()] == ["mine"], "the lock is no file"
    assert (folder / "mine").exists()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    process, pipe = start(tmp_path / "run")
    assert pipe.recv() == "in"
    process.kill()
    process.join()
    with alone_in(tmp_path / "run"):
        pass


def test_an_error_frees_the_folder_and_an_empty_one_goes(tmp_path: Path) -> None:
    with pytest.raises(KeyError), alone_in(tmp_path / "run"):
        raise KeyError
    assert not (tmp_path / "run").exists()
    with alone_in(tmp_path / "run"):
        with pytest.raises(ValueError, match=BUSY), alone_in(tmp_path / "run"):
            pytest.fail("twice in")
        assert (tmp_path / "run").exists(), "it is not the refused one's to remove"


def test_a_folder_that_its_owner_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening a folder and locking it, the one that was in it ends and removes it."""
    opened = os.open

    def slowly(*arguments: object) -> int:
        handle = opened(*arguments)
        (tmp_path / "run").rmdir()
        return handle

    monkeypatch.setattr(os, "open", slowly)
    with pytest.raises(ValueError, match=BUSY), alone_in(tmp_path / "run"):
        pytest.fail("in a folder that is gone")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"), alone_in(tmp_path / "file"):
        pytest.fail("in a file")
