"""No cell and no id of anybody's table in what the command prints and writes for people: canaries
are in every id and every cell, and must be nowhere else."""

import gzip
import json
import re
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedloom.cli.main import main

CANARIES = re.compile("zanzibar|Quagmire|77310|1921-0", re.IGNORECASE)

RUN = """\
[data]
id = "person"
label = "late"

[data.silos]
bank = {north = "north.csv", south = "south.csv"}
shop = "shop.csv"

[algorithm]
batch = 10
rounds = 2
"""
BANK, SHOP = "person,income,town,late\n", "person,orders,late\n"


def bank(start, stop):
    return "".join(
        f"zanzibar{i},77310.{i},Quagmire {i % 3},{'no' if i % 2 else 'yes'}\n"
        for i in range(start, stop)
    )


def shop(stop):
    return "".join(f"zanzibar{i},77310{i},{'no' if i % 2 else 'yes'}\n" for i in range(stop))


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "north.csv").write_text(BANK + bank(0, 150))
    (tmp_path / "south.csv").write_text(BANK + bank(150, 200))
    (tmp_path / "shop.csv").write_text(SHOP + shop(200))
    return tmp_path


def parquet(**columns):
    given = {"person": ["zanzibar1"], "income": [1.0], "town": ["x"], "late": ["no"], **columns}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(given), sink)
    return sink.getvalue().to_pybytes()


DAMAGES = {  # of north.csv, and what is said of it
    "twice": (lambda t: t + "zanzibar3,1,Quagmire,no\n", "more than once"),
    "at two clients": (lambda t: t + "zanzibar160,1,Quagmire,no\n", "by more than one client"),
    "ragged": (lambda t: t + "zanzibar990,Quagmire\n", "line 152 has 2 cells"),
    "a quote left open": (lambda t: t + '"zanzibar990,1,Quagmire,no\n', "line 152 has 1 cells"),
    "no header": (lambda t: t.removeprefix(BANK), "is there a header"),
    "no header, and a cell near the id's name": (
        lambda t: "zanzibar,Personne," + t.removeprefix(BANK),
        "is column 2 meant",
    ),
    "text among numbers": (lambda t: t.replace(",77310.7,", ",Quagmire,"), "1 cells of 150"),
    "infinite": (lambda t: t.replace(",77310.7,", ",inf,"), "1 cells are infinite"),
    "dates": (lambda t: re.sub(r",77310\.\d+,", ",1921-01-01,", t), "dates and times"),
    "a date among numbers": (
        lambda t: t.replace(",77310.7,", ",1921-01-01,"),
        "1 cells of 150 that are not numbers",
    ),
    "free text": (lambda t: re.sub(r"(\d+),Quag", r"\1,\1 Quag", t), "categories .at most 100"),
    "another label": (lambda t: t.replace(",yes", ",Quagmire"), "labels are of classes|disagree"),
    "labels that disagree": (lambda t: t.replace(",yes", ",no", 9), "disagree"),
    "ids written otherwise": (
        lambda t: t.replace("zanzibar", " Zanzi-bar 0"),
        "150 more ids would match if all of blanks, case,",
    ),
    "other ids": (lambda t: t.replace("zanzibar", "Quagmire"), "only 25 % of the ids of silo bank"),
    "no ids": (lambda t: t.replace("zanzibar3,", ","), "1 of 150 ids are missing"),
    "long ids": (lambda t: t.replace("zanzibar3,", "zanzibar" * 30 + ","), "longer than 200"),
    "NUL": (lambda t: t.replace("zanzibar3,", "zanzibar\0,"), "neither CSV nor Parquet"),
    "Latin-1": (lambda t: t.replace("Quagmire 1", "Quägmire").encode("latin-1"), "not UTF-8"),
    "gzip and more": (lambda t: gzip.compress(t.encode()) + b"zanzibar", "damaged gzip"),
    "gzip cut short": (lambda t: gzip.compress(t.encode())[:-9], "damaged gzip"),
    "Parquet in part": (lambda t: parquet()[:-20], "damaged or not Parquet"),
    "binary in Parquet": (lambda t: parquet(town=[b"\xffzanzibar"]), "not UTF-8"),
    "lists in Parquet": (lambda t: parquet(town=[["zanzibar"]]), "cannot be made into numbers"),
    "ids as fractions": (lambda t: parquet(person=[77310.5]), "not fractions"),
}


@pytest.fixture
def without_canaries(tables, capsys):
    """The command, whose output and errors hold no canary, nor those of its traceback."""

    def call(*words):
        given = [str(word) for word in words]
        code = main(given)
        shown = capsys.readouterr()
        if code == 3:  # where it came from, as --debug shows it
            with pytest.raises(Exception) as problem:  # noqa: PT011
                main(["--debug", *given])
            output = capsys.readouterr()
            shown_too = "".join(traceback.format_exception(problem.value)) + output.out + output.err
            assert not CANARIES.findall(shown_too)
        assert not CANARIES.findall(shown.out + shown.err)
        return code, shown.out, shown.err

    return call


def written(folder, *but):
    """The texts in a folder, {name: text}, but for some folders."""
    files = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and path.suffix != ".safetensors" and not {*but} & {*inside}:
            files["/".join(inside)] = path.read_bytes().decode("utf-8", "ignore")
    return files


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tables(damage, tables, without_canaries):
    path = tables / "north.csv"
    spoil, message = DAMAGES[damage]
    spoilt = spoil(path.read_text())
    path.write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    for verb, *more in (["check"], ["run", "--out", tables / "out"]):
        code, _, err = without_canaries(verb, tables / "run.toml", *more)
        assert code == 3, (damage, err)
        assert len(err.splitlines()) == 1
        assert re.search(message, err), err
    assert not (tables / "out").exists()


def test_sound_tables(tables, without_canaries):
    """The model's folder holds how columns are prepared, categories included."""
    file, out = tables / "run.toml", tables / "out"
    (tables / "shop.csv").write_text(
        SHOP + shop(150) + shop(200)[len(shop(150)) :].replace("z", "Z")
    )
    for verb, *more in (["check"], ["check", "--json"], ["explain"], ["run", "--out", out]):
        code, _, err = without_canaries(verb, file, *more)
        assert code == 0, err
    assert without_canaries("report", out)[0] == 0
    texts = written(out, "model")
    assert {"manifest.json", "report.html", "records.jsonl", "run.toml"} <= set(texts)
    assert not [name for name, text in texts.items() if CANARIES.search(text)]
    titles = json.loads(texts["manifest.json"])["data"]["silos"]["bank"]["columns"]
    assert titles == ["income", "town (3 categories)"]


def test_a_sweep_and_a_rehearsal_of_damaged_tables(tables, without_canaries):
    path = tables / "north.csv"
    path.write_text(DAMAGES["ragged"][0](path.read_text()))
    code, *_ = without_canaries("rehearse", tables / "run.toml", "--out", tables / "rehearsal")
    assert code == 3
    grid = ["--seeds", "2", "--jobs", "1", "--out", tables / "sweep"]
    code, *_ = without_canaries("sweep", tables / "run.toml", *grid)
    assert code == 1
    texts = written(tables / "sweep")
    logs = [text for name, text in texts.items() if name.endswith(".log")]
    assert len(logs) == 2
    assert all("lines that do not fit its header" in text for text in logs)
    assert not [name for name, text in texts.items() if CANARIES.search(text)]
