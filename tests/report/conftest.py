"""What every figure has to satisfy."""

import itertools
from collections.abc import Callable

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


@pytest.fixture(scope="session")
def check_readable() -> Callable[[Figure], None]:
    return _check_readable


def _check_readable(figure: Figure) -> None:
    """Titled, labelled, no letter under 9 points, no text cut off and none over another."""
    FigureCanvasAgg(figure).draw()
    assert figure.get_suptitle()
    panels = [panel for panel in figure.axes if panel.get_visible()]
    for panel in panels:
        assert panel.get_title()
        # Panels in a grid with common axes are labelled on its edges.
        place = panel.get_subplotspec()
        assert panel.get_xlabel() or not place.is_last_row()
        assert panel.get_ylabel() or not place.is_first_col()
        for label in (*panel.get_xticklabels(), *panel.get_yticklabels()):
            assert label.get_fontsize() >= 9
    ticks = {id(t) for p in figure.axes for a in (p.xaxis, p.yaxis) for t in a.findobj(Text)}
    ticks -= {id(label) for p in panels for label in (p.xaxis.label, p.yaxis.label)}
    hidden = {id(t) for p in figure.axes if not p.get_visible() for t in p.findobj(Text)}
    texts = [
        t
        for t in figure.findobj(Text)
        if t.get_visible() and t.get_text().strip() and id(t) not in ticks | hidden
    ]
    boxes = [text.get_window_extent() for text in texts]
    for text, box in zip(texts, boxes, strict=True):
        assert text.get_fontsize() >= 9, text
        edges = figure.bbox
        assert min(box.x0, box.y0, edges.x1 - box.x1, edges.y1 - box.y1) >= 0, f"{text} is cut off"
    for (a, box), (b, other) in itertools.combinations(zip(texts, boxes, strict=True), 2):
        # Half a point: boxes of neighbouring lines may touch.
        assert not box.padded(-1).overlaps(other.padded(-1)), f"{a} lies over {b}"
