"""Formulae as MathML, which browsers draw by themselves: no script, no font, nothing to load."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

LOGGER = getLogger(__name__)


def mathml(node: nodes.Element, display: str) -> str:
    """The formula of a math node; TeX that the converter leaves in the text is a warning."""
    markup: str = convert(node.astext(), display=display)
    if "\\" in markup or "<mi>&</mi>" in markup:
        LOGGER.warning("formula not understood: %s", node.astext(), location=node)
    return markup


def visit_inline(self: HTML5Translator, node: nodes.Element) -> None:
    """Inside a line of text."""
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.Element) -> None:
    """On a line of its own, which scrolls where the screen is narrow."""
    self.body.append(f'<div class="math">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the renderer known as ``mathml``."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
