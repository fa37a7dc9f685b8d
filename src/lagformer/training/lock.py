"""One process at a time in a folder that a training writes to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make `folder` and keep other processes that call this out of it, to the end of the block.

    The lock is the operating system's, on the folder itself: no file is left by it, and it goes
    with the process however that ends. Windows and file systems without such locks have none. A
    folder that is still empty at the end is removed.

    Raises ValueError if another process, or another block of this one, is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    busy = ValueError(f"{folder} is in use by another process: wait until it ends")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError:  # a network file system without locks
        return
    # The one that held the lock may have removed the folder since it was opened.
    if not (folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())):
        raise busy
