"""Docstrings are written to be read as they are; this makes reStructuredText leave them so."""

from __future__ import annotations

import re

from sphinx.application import Sphinx


def protect(line: str) -> str:
    """Code between single backticks becomes literal; elsewhere |, * and a last _ are themselves.

    A line that has doubled backticks or a role already is reStructuredText and stays.
    """
    if "``" not in line and ":`" not in line:
        line = re.sub(r"`([^`]+)`", r"``\1``", line)
    parts = re.split(r"(``.*?``)", line)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", parts[index])
    return "".join(parts)


def process(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Called by autodoc with each docstring."""
    lines[:] = [
        re.sub(r"^(\s*)Attributes \(after fit\):$", r"\1Attributes:", protect(line))
        for line in lines
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Before napoleon, which turns sections into fields."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
