"""The book of results is that of the stored ones, and the list shows them."""

import json

import pytest

from fedloom.cli.main import main
from fedloom.reproduce import book
from fedloom.reproduce.conduct import Conduct
from fedloom.reproduce.experiment import Experiment, names
from fedloom.reproduce.verdicts import Verdict


def test_the_book_is_that_of_the_stored_results():
    page = (book.DOCS / "results.md").read_text()
    assert page == book.page(), "run: python -m fedloom.reproduce.book"


def test_stored_results_are_whole():
    files = sorted(book.STORED.glob("*.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text())
        assert path.stem == result["name"] + ("-full" if result["full"] else "")
        assert result["name"] in names()
        assert result["verdicts"]
        assert all(Verdict(**verdict).detail for verdict in result["verdicts"])
        assert (book.DOCS / "results" / f"{path.stem}.png").stat().st_size < 150_000
        assert path.stat().st_size < 20_000


def test_the_list_has_a_verdict_for_what_was_run(tmp_path, capsys):
    assert main(["reproduce", "--list", "--out", str(tmp_path), "--json"]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert list(lines) == names()
    stored = {path.stem for path in book.STORED.glob("*.json")}
    for name, line in lines.items():
        assert ("stored" in line["default"]) == (name in stored)
        assert ("stored" in line["full"]) == (f"{name}-full" in stored)
    result = json.loads((book.STORED / f"{sorted(stored)[0]}.json").read_text())
    result["verdicts"][0]["held"] = not result["verdicts"][0]["held"]
    (tmp_path / result["name"]).mkdir()
    (tmp_path / result["name"] / "result.json").write_text(json.dumps({**result, "full": False}))
    main(["reproduce", "--list", "--out", str(tmp_path)])
    (line,) = (
        x for x in capsys.readouterr().out.splitlines() if x.startswith(result["name"] + " ")
    )
    assert "yours" in line


def test_what_is_not_there_is_told(capsys):
    assert main(["reproduce", "icassp-fig2"]) == 2
    assert "did you mean 'icassp-fig2" in capsys.readouterr().err
    assert main(["reproduce", "tdcd-fig3", "--seeds", "0"]) == 2
    assert main(["reproduce", "tdcd-fig3", "--only", "K=7"]) == 2
    assert "no curve is at" in capsys.readouterr().err


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An empty book, and a folder with one finished result, without its runs."""
    known = json.loads((book.STORED / "icassp-fig2a.json").read_text())
    monkeypatch.setattr(book, "STORED", tmp_path / "stored")
    monkeypatch.setattr(book, "DOCS", tmp_path)
    root = tmp_path / "runs"
    (root / "icassp-fig2a").mkdir(parents=True)
    (root / "icassp-fig2a" / "figure.png").write_bytes(b"png")

    def put(**changed):
        (root / "icassp-fig2a" / "result.json").write_text(json.dumps({**known, **changed}))
        return book.take(root)["icassp-fig2a"]

    return put


def test_only_what_is_better_is_taken(shelf, tmp_path):
    assert shelf(finished=False) == "not finished"
    assert shelf(iterations=5, only={"Q": "1"}, seeds=1) == "stored"
    assert shelf(iterations=4) == "the stored one has more iterations"
    assert shelf() == "stored"
    assert (tmp_path / "results" / "icassp-fig2a.png").read_bytes() == b"png"
    assert shelf(iterations=1000) == "the stored one has more iterations"
    assert shelf(seeds=2) == "the stored one has more seeds"
    assert shelf(only={"Q": "1"}) == "the stored one has all curves"


def test_runs_of_another_description_are_not_taken(shelf, tmp_path):
    run = Conduct(Experiment.read("icassp-fig2a"), tmp_path / "runs", 3).runs[0]
    run.folder.mkdir(parents=True)
    (run.folder / "run.toml").write_text(run.file.to_toml().replace("rounds = 80", "rounds = 81"))
    assert shelf() == "of another description"
