"""Scripts and notebooks under examples/ run as they are, and end where their text says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN = 120


def numbers(pattern, printed):
    """What a pattern finds, as numbers."""
    return [float(text) for text in re.findall(pattern, printed)]


def risky_and_safe(printed):
    risky, safe = numbers(r"risk ([0-9.]+)", printed)
    assert risky > 0.8
    assert safe < 0.2


def worth_it(printed):
    federated, _pooled, alone, combined = numbers(r"(0\.\d{3}) ", printed)
    assert federated > max(alone, combined)


def slower(printed):
    at_once, part_way = numbers(r"loss ([0-9.]+)", printed)
    assert at_once < part_way < 1.0


SCRIPTS = {
    "own_tables.py": risky_and_safe,
    "is_it_worth_it.py": worth_it,
    "own_algorithm.py": slower,
}
NOTEBOOKS = ["first_run.ipynb", "local_steps.ipynb"]


def test_none_is_left_out():
    there = {path.name for path in (ROOT / "examples").iterdir()}
    page = (ROOT / "docs/examples.md").read_text()
    assert {name for name in there if name.endswith(".py")} == set(SCRIPTS)
    assert {name for name in there if name.endswith(".ipynb")} == set(NOTEBOOKS)
    assert [name for name in there if f"`{name}" not in page] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name, tmp_path):
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert ran.returncode == 0, ran.stderr
    SCRIPTS[name](ran.stdout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook(name, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # else jupyter_core warns
    monkeypatch.setenv("IPYTHONDIR", os.fspath(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # they are made where it is read
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=WITHIN, resources=where).execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("image/png" in out.get("data", {}) for out in shown)
