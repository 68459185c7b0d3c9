"""The drawing of packages' imports is of this code, and would say so if it were not."""

import sys

import pytest

from tools import graph


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
