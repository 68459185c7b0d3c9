"""The figure of who holds what: drawn for every size, its texts apart."""

import pytest

import fedloom.data.datasets  # noqa: F401
from fedloom.data.catalog import load
from fedloom.data.partition.partition import Partition, place
from fedloom.report.holdings import holdings


def drawn(data, **settings):
    return holdings(place(data, Partition(**settings).cut(data)).summary())


def texts(figure):
    """The texts that are shown, with their boxes; ticks outside of a panel are not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown if text not in hidden]
    return [(text, box) for text, box in boxes if box.width]


CASES = {
    "one silo, one client": (("wine", {}), {"silos": 1, "clients": 1}),
    "images": (("digits", {}), {"clients": [3, 20], "horizontal": "dirichlet"}),
    "numbers": (("diabetes", {}), {"silos": ["hospital", "insurer"], "clients": [2, 40]}),
    "long names": (("breast-cancer", {}), {"silos": ["x" * 60, "y" * 60], "clients": 4}),
    "many clients": (
        ("synthetic", {"rows": 4000, "goal": "classes", "classes": 10}),
        {"clients": [21, 1000], "horizontal": "dirichlet"},
    ),
    "many silos and classes": (
        ("synthetic", {"rows": 2000, "features": 24, "goal": "classes", "classes": 40}),
        {"silos": 12, "clients": [*range(1, 12), 30]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_do_not_overlap(case):
    (name, options), settings = CASES[case]
    figure = drawn(load(name, **options), **settings)
    found, edge = texts(figure), figure.bbox
    assert len(found) > 5
    for k, (text, box) in enumerate(found):
        assert box.x0 >= edge.x0, text
        assert box.x1 <= edge.x1, text
        assert box.y0 >= edge.y0, text
        assert box.y1 <= edge.y1, text
        for other, their in found[:k]:
            wide = min(box.x1, their.x1) - max(box.x0, their.x0)
            high = min(box.y1, their.y1) - max(box.y0, their.y0)
            assert wide <= 1 or high <= 1, f"{text!r} overlaps {other!r}"


def test_bars_are_as_long_as_the_rows_held():
    data = load("digits")
    placed = place(data, Partition(clients=[2, 3], horizontal="dirichlet", labels_at="b").cut(data))
    summary = placed.summary()
    first, second = holdings(summary).axes
    for panel, held in ((first, summary["silos"]["a"]), (second, summary["silos"]["b"])):
        ends = {}
        for bar in panel.patches:
            ends[round(bar.get_y(), 3)] = bar.get_x() + bar.get_width()
        assert [ends[y] for y in sorted(ends)] == [sum(rows) for rows in held["clients"].values()]
    assert first.get_title("left") == "a: 2 clients, no labels\nfeatures 1 x 8 x 4"


def test_it_is_saved(tmp_path):
    data = load("iris")
    summary = place(data, Partition(clients=2).cut(data)).summary()
    holdings(summary, tmp_path / "holdings.png")
    assert (tmp_path / "holdings.png").read_bytes()[:4] == b"\x89PNG"


def test_a_name_with_dollars_is_plain_text():
    data = load("iris")
    figure = drawn(data, silos=["$a$", "b_{c"], clients=2)
    assert len(texts(figure)) > 5
