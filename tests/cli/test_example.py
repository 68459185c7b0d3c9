"""Run files that come with the package."""

from pathlib import Path

import pytest

from fedloom.cli.example import examples
from fedloom.cli.main import main
from fedloom.config.runfile import RunFile

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", examples())
def test_what_is_written_can_be_run(name, capsys):
    assert main(["example", name]) == 0
    assert f"fedloom run {name}.toml" in capsys.readouterr().out
    assert RunFile.read(Path(f"{name}.toml")).rounds > 0
    assert main(["check", f"{name}.toml"]) == 0


def test_they_are_those_of_the_repository():
    there = {path.stem: path.read_text() for path in ROOT.glob("examples/*.toml")}
    assert there == examples()
    assert "diabetes" in there


def test_the_list_says_what_each_is(capsys):
    assert main(["example"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(examples())
    assert all(line.endswith(".") and len(line.split()) > 5 for line in lines)


def test_nothing_is_overwritten(capsys):
    Path("diabetes.toml").write_text("mine")
    assert main(["example", "diabetes"]) == 5
    assert Path("diabetes.toml").read_text() == "mine"
    assert main(["example", "diabetes", "--out", "other.toml"]) == 0
    assert Path("other.toml").read_text() == examples()["diabetes"]


def test_an_unknown_name_is_told_the_nearest(capsys):
    assert main(["example", "diabets"]) == 2
    assert "did you mean 'diabetes'?" in capsys.readouterr().err
