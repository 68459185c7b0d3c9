"""Tables as they are: what is read, what is dropped and said."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedloom import Run, Task, TDCDPrivateLabels, linear
from fedloom.core.errors import DataError, SettingError
from fedloom.data.labels import Target
from fedloom.data.tables.columns import Cells, TextColumn
from fedloom.data.tables.common_rows import split_by_hash
from fedloom.data.tables.files import hashed
from fedloom.data.tables.prepare import Preparation
from fedloom.data.tables.read import read_rows, read_tables

NORTH = "id,age,job,left\n1,30,baker,no\n2,40,clerk,yes\n3,,baker,no\n"
SOUTH = "job,id,left,age\nclerk,4,yes,50\nbaker,5,no,60\n"
INSURER = "id,claims\n5,1.5\n4,0\n3,2\n2,1\n1,0\n"


@pytest.fixture
def files(tmp_path):
    """Two silos of CSV files; keywords replace what a file holds, or its path."""

    def make(north=NORTH, south=SOUTH, insurer=INSURER):
        paths = {}
        for name, clients in (("north", north), ("south", south), ("insurer", insurer)):
            paths[name] = clients
            if not isinstance(clients, Path):
                paths[name] = tmp_path / f"{name}.csv"
                paths[name].write_bytes(clients if isinstance(clients, bytes) else clients.encode())
        bank = {"north": paths["north"], "south": str(paths["south"])}
        return {"bank": bank, "insurer": paths["insurer"]}

    return make


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def read(files, **options):
    return read_tables(files, **{"label": "left", "test": 0, **options})


def test_csv_files_of_two_silos(files):
    data = read(files())
    assert data.goal == "binary"
    assert data.classes == ("no", "yes")
    assert data.train.topology.clients == {"bank": ("north", "south"), "insurer": ("all",)}
    assert data.train.ids.tolist() == ["1", "2", "3", "4", "5"]
    assert data.train.owner["bank"].tolist() == [0, 0, 0, 1, 1]
    assert data.columns == {
        "bank": ("age", "age is missing", "job = baker", "job = clerk"),
        "insurer": ("claims",),
    }
    ages = torch.tensor([30, 40, 45, 50, 60.0])
    scaled = (ages - 45) / torch.tensor([30, 40, 50, 60.0]).std(correction=0)
    assert torch.allclose(data.train.x["bank"][:, 0], scaled)
    assert data.train.x["bank"][:, 1:].tolist() == [
        [0, 1, 0],
        [0, 0, 1],
        [1, 1, 0],
        [0, 0, 1],
        [0, 1, 0],
    ]
    assert data.train.y["bank"].tolist() == [0, 1, 0, 1, 0]
    assert data.train.y["insurer"] is None
    assert data.test is None
    assert data.notes == (
        "goal 'binary' guessed: label column 'left' has 2 different values",
        "label column 'left': 1 stands for 'yes', 0 for 'no'",
    )
    assert set(data.sources) == {"bank/north", "bank/south", "insurer/all"}
    assert data.summary()["silos"]["bank"]["clients"] == {"north": [3, 0], "south": [2, 0]}


def test_training_on_it(files):
    data = read(files())
    learn = Task({"bank": linear(4), "insurer": linear(1)}, "binary-cross-entropy")
    run = Run(TDCDPrivateLabels(batch=5, labels_at="bank"), learn, data.train)
    assert run.fit(2).predict().shape == (5, 1)


@pytest.mark.parametrize("ids", [[5, 4, 3, 2, 1], ["5", " 4", "3 ", "2", "1"], [5.0, 4, 3, 2, 1]])
def test_parquet_and_csv_are_the_same(files, tmp_path, ids):
    insurer = parquet(tmp_path / "insurer.parquet", id=ids, claims=[1.5, 0, 2, 1, 0])
    coded = pa.array(["baker", "clerk", "baker"]).dictionary_encode()
    north = parquet(
        tmp_path / "north.pq", id=[1, 2, 3], age=[30, 40, None], job=coded, left=["no", "yes", "no"]
    )
    a, b = read(files()), read(files(north=north, insurer=insurer))
    assert a.train.ids.tolist() == b.train.ids.tolist()
    assert all(torch.equal(a.train.x[silo], b.train.x[silo]) for silo in a.train.x)
    assert a.preparation == b.preparation


@pytest.mark.parametrize(
    "insurer",
    [
        INSURER.replace(",", ";").replace("1.5", "1,5"),
        INSURER.replace(",", "\t"),
        b"\xef\xbb\xbf" + INSURER.encode(),
        INSURER.replace("\n", "\r\n"),
        INSURER.replace("id,claims", ' id ,"claims"'),
        INSURER.replace("4,0", "  4 , 0 ").strip(),
    ],
)
def test_dialects_of_csv(files, insurer):
    assert torch.equal(
        read(files(insurer=insurer)).train.x["insurer"], read(files()).train.x["insurer"]
    )


def test_gzipped_csv(files, tmp_path):
    import gzip

    packed = tmp_path / "insurer.csv.gz"
    packed.write_bytes(gzip.compress(INSURER.encode()))
    assert read(files(insurer=packed)).sources == read(files()).sources


def test_ids_are_text(files):
    """A leading zero makes another id."""
    data = read(files(insurer=INSURER.replace("\n1,", "\n01,")))
    assert data.train.ids.tolist() == ["2", "3", "4", "5"]


def test_partial_overlap_is_said(files):
    data = read(files(insurer=INSURER.replace("\n3,2", "\n8,2\n9,9")))
    assert data.train.ids.tolist() == ["1", "2", "4", "5"]
    assert data.notes[:2] == (
        "bank: 1 of 5 rows dropped: their ids are not in every silo",
        "insurer: 2 of 6 rows dropped: their ids are not in every silo",
    )


def test_rows_without_labels_are_dropped_and_said(files):
    data = read(files(north=NORTH.replace("baker,no", "baker,", 1)))
    assert data.train.ids.tolist() == ["2", "3", "4", "5"]
    assert "bank: 1 of 5 rows dropped: they have no label" in data.notes


def test_a_client_may_be_left_without_rows(files):
    data = read(files(insurer="id,claims\n1,2\n2,3\n3,5\n"))
    assert data.train.topology.clients["bank"] == ("north", "south")
    assert "client bank/south has no training rows" in data.notes
    only_a_header = read(files(south="id,age,job,left", insurer="id,claims\n1,2\n2,3\n3,5\n"))
    assert torch.equal(only_a_header.train.x["bank"], data.train.x["bank"])


def test_a_share_is_drawn_alike_in_every_silo_and_fitting_sees_training_rows_only(files):
    draw = np.random.default_rng(0)
    rows = [f"{k},{draw.normal():.3f},{'yes' if k % 3 else 'no'}" for k in range(400)]
    half = "id,x,left\n" + "\n".join(rows[:100])
    rest = "id,x,left\n" + "\n".join(rows[100:])
    insurer = "id,claims\n" + "\n".join(f"{k},{k * k % 17}" for k in range(390))
    data = read(files(half, rest, insurer), test=0.25)
    assert data.test.size + data.train.size == 390
    assert 70 < data.test.size < 130
    assert data.train.x["bank"].mean().abs() < 1e-6
    assert data.train.x["insurer"].std(correction=0) == pytest.approx(1)
    assert data.test.x["bank"].mean().abs() > 1e-6
    assert data.test.topology == data.train.topology
    smaller = read(files(half, rest, insurer[: insurer.index("\n300,")]), test=0.25)
    assert set(smaller.test.ids) == {id_ for id_ in data.test.ids if int(id_) < 300}
    assert read(files(half, rest, insurer), test=0.5).test.size > data.test.size


def test_the_rows_for_testing_stay_the_same():
    """In every version: a model is judged on rows that it was not trained on."""
    testing = [row for row, test in enumerate(split_by_hash(map(str, range(40)), 0.25)) if test]
    assert testing == [0, 1, 6, 13, 15, 16, 19, 21, 29, 30, 33, 35]


def test_a_column_may_say_what_is_for_testing(files):
    insurer = "id,claims,held\n1,5,true\n2,6,False\n3,7,0\n4,8,1\n5,9,0\n"
    data = read(files(insurer=insurer), test="held")
    assert data.test.ids.tolist() == ["1", "4"]
    head, *lines = insurer.splitlines()
    mixed = "\n".join([head, *(lines[k] for k in (4, 3, 1, 0, 2))])
    assert read(files(insurer=mixed), test="held").test.ids.tolist() == ["1", "4"]
    with pytest.raises(DataError, match=r"1 cells of the test column .* row 3 of insurer.csv"):
        read(files(insurer=insurer.replace("3,7,0", "3,7,")), test="held")
    assert data.columns["insurer"] == ("claims",)
    north = NORTH.replace("left", "held,left").replace(",no", ",0,no").replace(",yes", ",0,yes")
    south = "id,age,job,held,left\n4,50,clerk,1,yes\n5,60,baker,0,no\n"
    with pytest.raises(DataError, match="silos bank and insurer disagree on 1 ids"):
        read(files(north, south, insurer), test="held")
    with pytest.raises(DataError, match=r"1 cells of the test column .* row 2 of insurer.csv"):
        read(files(insurer=insurer.replace("False", "maybe")), test="held")
    with pytest.raises(DataError, match="no silo has the test column 'hold'; did you mean 'held'"):
        read(files(insurer=insurer), test="hold")


def test_all_rows_for_testing_is_refused(files):
    insurer = "id,claims,held\n" + "".join(f"{k},5,1\n" for k in range(1, 6))
    with pytest.raises(DataError, match="all 5 common rows are for testing"):
        read(files(insurer=insurer), test="held")


def test_hashed_ids_match_and_do_not_go_further(files):
    plain = read(files())
    data = read(files(), ids="hashed", salt="pepper")
    assert sorted(data.train.ids) == sorted(hashed(plain.train.ids.tolist(), "pepper"))
    assert all(len(digest) == 64 for digest in data.train.ids)
    assert data.preparation == plain.preparation
    assert read(files(), ids="hashed", salt="salt").train.ids[0] != data.train.ids[0]


@pytest.mark.parametrize(
    ("labels", "goal", "classes", "y"),
    [
        (["b", "a", "c", "a", "b"], "classes", ("a", "b", "c"), [1, 0, 2, 0, 1]),
        (["2", "1.0", "2.0", "1", "2"], "binary", ("1", "2"), [1, 0, 1, 0, 1]),
        (["true", "false", "True", "false", "true"], "binary", ("false", "true"), [1, 0, 1, 0, 1]),
        (["0.5", "1", "2", "3", "7"], "number", (), [0.5, 1, 2, 3, 7]),
        (["10", "20", "30", "40", "50"], "number", (), [10, 20, 30, 40, 50]),
    ],
)
def test_goals_are_guessed(files, labels, goal, classes, y):
    rows = [f"{k + 1},{k},{label}" for k, label in enumerate(labels)]
    north, south = ("id,x,left\n" + "\n".join(part) for part in (rows[:3], rows[3:]))
    data = read(files(north, south))
    assert (data.goal, data.classes) == (goal, classes)
    assert data.train.labels().tolist() == y
    assert f"goal {goal!r} guessed" in data.notes[0]


@pytest.mark.parametrize(("values", "goal"), [(20, "classes"), (21, "number")])
def test_many_whole_numbers_are_no_classes(files, values, goal):
    rows = [f"{k},{k},{k % values}" for k in range(60)]
    north, south = ("id,x,left\n" + "\n".join(part) for part in (rows[:30], rows[30:]))
    insurer = "id,claims\n" + "\n".join(f"{k},{k}" for k in range(60))
    assert read(files(north, south, insurer)).goal == goal


def test_too_many_classes_are_refused(files):
    rows = [f"{k},{k},word {k % 1001}" for k in range(2002)]
    north, south = ("id,x,left\n" + "\n".join(part) for part in (rows[:1001], rows[1001:]))
    insurer = "id,claims\n" + "\n".join(f"{k},{k}" for k in range(2002))
    with pytest.raises(DataError, match="1001 different values are too many for classes"):
        read(files(north, south, insurer))


def test_labels_that_are_missing_are_of_no_class():
    words = TextColumn(("no", "yes"), np.array([0, 1, -1, -1]))
    with pytest.raises(DataError, match="here: 2 labels are of classes that are not known"):
        Target("binary", ("no", "yes")).encode(Cells("text", words), "here")


def test_goals_are_given(files):
    rows = [f"{k},{k},{k % 4}" for k in range(1, 13)]
    north, south = ("id,x,left\n" + "\n".join(part) for part in (rows[:5], rows[5:]))
    insurer = "id,claims\n" + "\n".join(f"{k},{k}" for k in range(1, 13))
    given = files(north, south, insurer)
    assert read(given).goal == "classes"
    data = read(given, goal="number")
    assert (data.goal, data.classes) == ("number", ())
    assert not data.notes
    with pytest.raises(DataError, match="4 different values, not two"):
        read(given, goal="binary")
    with pytest.raises(DataError, match=r"bank/north: 3 of 3 cells of label column 'left' are not"):
        read(files(), goal="number")


def test_several_silos_may_have_labels_and_must_agree(files):
    insurer = "id,claims,left\n1,2,no\n2,3,yes\n3,4,no\n4,4,yes\n5,5,no\n"
    data = read(files(insurer=insurer))
    assert torch.equal(data.train.y["bank"], data.train.y["insurer"])
    with pytest.raises(DataError, match="labels disagree between silos bank and insurer on 1 rows"):
        read(files(insurer=insurer.replace("5,5,no", "5,5,yes")))


def test_columns_can_be_named(files):
    north = NORTH.replace("left", "zip,left").replace(",no", ",01,no").replace(",yes", ",1,yes")
    south = SOUTH.replace("left", "zip,left").replace("4,", "4,02,").replace("5,", "5,02,", 1)
    data = read(files(north, south), categories=["zip"], drop=["age"], numbers=["claims"])
    assert data.columns["bank"][2:] == ("zip = 01", "zip = 02", "zip = 1")
    assert "age" not in " ".join(data.columns["bank"])
    assert read(files(north, south)).columns["bank"][-1] == "zip"


def test_an_empty_column_at_one_client_is_fine(files):
    data = read(files(south=SOUTH.replace(",50", ",").replace(",60", ",")))
    assert data.columns["bank"][:2] == ("age", "age is missing")
    text = read(files(south=SOUTH.replace("clerk", "").replace("baker", "NA")))
    assert text.columns["bank"][2:] == ("job = baker", "job = clerk", "job is missing")


def test_new_rows_for_prediction(files):
    data = read(files())
    saved = Preparation.from_json(data.preparation.to_json())
    again = read_rows(files(), saved, label="left")
    assert all(torch.equal(again.x[silo], data.train.x[silo]) for silo in again.x)
    assert torch.equal(again.labels(), data.train.labels())
    notes = []
    new = files("id,job,age,more\n7,pilot,45,x\n8,baker,,y\n", "", "id,claims\n8,1\n7,2\n9,3\n")
    new = read_rows({**new, "bank": new["bank"]["north"]}, saved, notes=notes)
    assert new.ids.tolist() == ["7", "8"]
    assert new.x["bank"].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0]]
    assert new.y == {"bank": None, "insurer": None}
    assert notes == ["insurer: 1 of 3 rows dropped: their ids are not in every silo"]


def test_new_rows_that_do_not_fit(files):
    saved = read(files()).preparation
    with pytest.raises(DataError, match=r"north.csv lacks 'age', which the model .* mean 'Age'"):
        read_rows(files(north=NORTH.replace("age", "Age")), saved)
    with pytest.raises(DataError, match=r"column 'age': 1 of 3 cells are not numbers .* row 2"):
        read_rows(files(north=NORTH.replace("40", "forty")), saved)
    with pytest.raises(DataError, match=r"files for silos \['bank'\], the model has"):
        read_rows({"bank": files()["bank"]}, saved)
    with pytest.raises(DataError, match="1 labels are of classes that are not known"):
        read_rows(files(south=SOUTH.replace("yes", "perhaps")), saved, label="left")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ["agee"]}, "drop: no feature column 'agee'; did you mean 'age'"),
        ({"numbers": ["claim"]}, "numbers: no feature column 'claim'; did you mean 'claims'"),
        ({"numbers": ["age"], "drop": ["age"]}, "'age' is named in both numbers and drop"),
        ({"drop": "age"}, 'drop: a list of text is expected, not "age"'),
        ({"goal": "clases"}, "goal: .* did you mean 'classes'"),
        ({"test": 1.5}, "test must be a share from 0 to below 1, or a column, not 1.5"),
        ({"label": "id"}, "the id, label and test columns must differ"),
        ({"ids": "hashed"}, "hashed ids need a salt"),
        ({"ids": "hash"}, "ids: .* did you mean 'hashed'"),
        ({"salt": "x"}, "a salt is of use only with ids='hashed'"),
        ({"rare": 0}, "rare must be at least 1, not 0"),
    ],
)
def test_settings(files, options, message):
    with pytest.raises(SettingError, match=message):
        read(files(), **options)


def test_what_is_not_a_path(files):
    with pytest.raises(SettingError, match=r"client bank/id: a path is expected, not a list$"):
        read({"bank": {"id": ["anna", "bert"]}})  # a table in place of a file
    with pytest.raises(DataError, match="at least one silo"):
        read({})


def test_the_page_about_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    block = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    settings = {}
    for code in block.findall(page):
        exec(compile(code, "tables.md", "exec"), settings)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out == shown
