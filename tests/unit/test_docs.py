"""The code in the README and the docs runs."""

import re
from pathlib import Path

import pytest

from fedloom.registry import algorithms
from fedloom.testing import CHECKS

ROOT = Path(__file__).parents[2]


def blocks(page):
    """The page's Python code, block by block."""
    return re.findall(
        r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )


def test_the_readmes_example(capsys):
    (code,) = blocks("README.md")
    found = {}
    exec(compile(code, "README.md", "exec"), found)
    assert "training loss" in capsys.readouterr().out
    assert found["scores"].shape == (200, 1)
    assert found["run"].loss() < 0.3
    assert len(code.splitlines()) <= 25


def test_the_example_algorithm_passes_the_battery(monkeypatch):
    monkeypatch.setattr(algorithms, "_known", dict(algorithms._known))
    algorithm, battery = blocks("docs/writing-an-algorithm.md")
    found = {"__name__": "docs"}
    exec(compile(algorithm, "writing-an-algorithm.md", "exec"), found)
    assert "stubborn" in algorithms
    for check in CHECKS.values():
        check(found["Stubborn"].examples()[0])
    exec(compile(battery, "writing-an-algorithm.md", "exec"), found)
    assert callable(found["test_battery"])


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", *sorted(map(str, ROOT.glob("docs/*.md")))]
)
def test_links_lead_somewhere(page):
    page = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["docs/vafl.md", "docs/splitnn-async.md"])
def test_examples_of_asynchronous_algorithms(page):
    (code,) = blocks(page)
    found = {}
    exec(compile(code, page, "exec"), found)
    run = found["run"]
    assert run.loss() < 2.2
    assert run.algorithm.notes(run.fed, run.state)["delay_mean"] > 0
    assert len(code.splitlines()) <= 12
