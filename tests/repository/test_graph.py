"""The drawing of packages' imports is of this code, and would say so if it were not."""

import sys

import pytest

from tools import drawing, graph


def test_the_drawing_is_of_this_code():
    assert graph.page() == graph.PAGE.read_text()
    assert graph.PAGE.read_text().count(graph.BEGIN) == 1


def test_an_arrow_that_follows_from_others_is_left_out():
    chain = {"cli": {"runs", "core"}, "runs": {"core"}, "core": set()}
    assert graph.reduced(chain) == {"cli": {"runs"}, "runs": {"core"}, "core": set()}


def test_an_arrow_up_is_an_error(monkeypatch):
    assert graph.upward({"core": {"cli"}, "cli": set()}, {"cli": 0, "core": 1}) == [
        "core imports cli"
    ]
    monkeypatch.setattr(graph, "imports", lambda packages: {p: {"cli"} for p in packages})
    with pytest.raises(SystemExit, match="core imports cli"):
        graph.page()


def test_a_drawing_of_other_code_is_refused(monkeypatch, tmp_path):
    other = tmp_path / "ARCHITECTURE.md"
    other.write_text(graph.PAGE.read_text().replace("  cli --> ", "  cli --> data %% ", 1))
    monkeypatch.setattr(graph, "PAGE", other)
    monkeypatch.setattr(sys, "argv", ["graph", "--check"])
    with pytest.raises(SystemExit, match="make graph"):
        graph.main()


def test_a_drawing_has_each_package_below_all_that_import_it():
    arrows = drawing.ARROW.findall(graph.PAGE.read_text())
    rows, paths = drawing.laid_out(arrows)
    level = {name: k for k, row in enumerate(rows) for name in row}
    assert {"cli", "core"} <= {name for arrow in arrows for name in arrow} <= set(level)
    assert all(level[source] < level[to] for source, to in arrows)
    for path in paths:  # by a place of its own in each row between
        assert [level[name] for name in path] == list(range(level[path[0]], level[path[-1]] + 1))
    assert len(level) == sum(map(len, rows))


def test_arrows_in_a_circle_are_not_drawn():
    with pytest.raises(ValueError, match="circle"):
        drawing.svg([("a", "b"), ("b", "a")])
