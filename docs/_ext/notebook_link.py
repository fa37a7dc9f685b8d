"""At the foot of every page that runs, a link to it as an executed notebook."""

from pathlib import PurePosixPath

from sphinx.application import Sphinx


def add_link(app: Sphinx, docname: str, source: list[str]) -> None:
    """Called by Sphinx with the text of each page."""
    if source[0].startswith("---") and "format_name: myst" in source[0].split("\n---", 1)[0]:
        name = PurePosixPath(docname).name
        source[0] += f"\n\n{{nb-download}}`This page as a notebook <{name}.ipynb>`\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs before the page is parsed."""
    app.connect("source-read", add_link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
