"""Files that cannot be used: an error that names the file and the cure, and shows nobody's data."""

import datetime
import gzip
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedloom.core.errors import DataError
from fedloom.data.tables.read import read_tables

NORTH = "id,age,job,left\nanna,30,baker,no\nbert,40,clerk,yes\n"
SOUTH = "id,age,job,left\ncarl,50,clerk,yes\ndora,60,baker,no\n"
INSURER = "id,claims\nanna,1\nbert,2\ncarl,3\ndora,5\n"
PRIVATE = (
    "anna",
    "bert",
    "carl",
    "dora",
    "forty",
    "baker",
    "clerk",
    "secret",
    "2020-01",
    "Anderson",
)


@pytest.fixture
def read(tmp_path):
    def make(north=NORTH, south=SOUTH, insurer=INSURER, suffix="csv", **options):
        paths = {}
        for name, clients in (("north", north), ("south", south), ("insurer", insurer)):
            paths[name] = tmp_path / f"{name}.{suffix if name == 'north' else 'csv'}"
            if clients is not None:
                paths[name].write_bytes(clients if isinstance(clients, bytes) else clients.encode())
        bank = {"north": paths["north"], "south": paths["south"]}
        files = {"bank": bank, "insurer": paths["insurer"]}
        return read_tables(files, **{"label": "left", "test": 0, **options})

    return make


def packed(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


GOOD = packed(id=["anna", "bert"], age=[30, 40], job=["baker", "clerk"], left=["no", "yes"])

CASES = {
    "duplicate ids": (
        {"north": NORTH + "anna,31,baker,no\n" * 2},
        "client bank/north: 1 ids occur more than once in north.csv, in 3 rows; keep one",
    ),
    "an id at two clients": (
        {"south": SOUTH + "anna,50,clerk,yes\n"},
        r"silo bank: 1 ids are held by more than one client \(north and south\); keep each at one",
    ),
    "missing ids": ({"north": NORTH + ",1,x,no\n  ,2,x,no\n"}, "2 of 4 ids are missing"),
    "no id column": (
        {"north": NORTH.replace("id,", "Id,")},
        "client bank/north: .*north.csv has no id column 'id'; did you mean 'Id'",
    ),
    "no header": ({"north": NORTH.split("\n", 1)[1]}, "'id'; say which it is; is there a header"),
    "no label column": ({"label": "lefft"}, "the label column 'lefft'; did you mean 'left'"),
    "no label column at one client": (
        {"south": SOUTH.replace("left", "right")},
        "silo bank: label column 'left' is missing at south; all clients of a silo must have it",
    ),
    "no labels in any row": (
        {"north": NORTH.replace(",no", ",").replace(",yes", ","), "south": "id,age,job,left\n"},
        "no id is in every silo: bank has no rows; insurer has 4 ids, text of 4 characters",
    ),
    "one label": (
        {"north": NORTH.replace("yes", "no"), "south": SOUTH.replace("yes", "no")},
        "all 4 labels are the same",
    ),
    "other columns at one client": (
        {"south": SOUTH.replace("age,", "Age,")},
        r"client bank/south: south.csv lacks 'age' and alone has 'Age' \(is 'Age' meant as 'age'\?"
        r"\); give all files of silo bank the same columns",
    ),
    "a column less": ({"south": "id,job,left\ncarl,x,no\n"}, "south.csv lacks 'age'; give"),
    "a column more": ({"south": "id,age,job,left,z\ncarl,1,x,no,1\n"}, "alone has 'z'; give"),
    "text among numbers": (
        {"south": SOUTH.replace("60", "forty")},
        r"client bank/south: column 'age' has 1 cells of 2 that are not numbers \(the first in row "
        r"2 of south.csv\), unlike those of client north; correct them, or name it in `categories`",
    ),
    "a slip in numbers": (
        {"insurer": INSURER.replace("3", "forty")},
        r"client insurer/all: column 'claims' has 1 cells of 4 that are not numbers \(the first in "
        "row 3 of insurer.csv",
    ),
    "text said to be numbers": (
        {"numbers": ["job"]},
        "north.csv, column 'job': 2 of 2 cells are not numbers .the first in row 1",
    ),
    "infinite": ({"insurer": INSURER.replace("3", "inf")}, "column 'claims': 1 cells are infinite"),
    "dates": (
        {"north": NORTH.replace("30", "2020-01-01").replace("40", "2021-01-01")},
        "client bank/north: north.csv, column 'age': dates and times .* convert",
    ),
    "no file": ({"north": None}, "client bank/north: there is no file .*north.csv"),
    "an empty file": ({"north": b""}, "client bank/north: .*north.csv is empty"),
    "blank lines only": ({"north": "\n\n"}, "client bank/north: .*north.csv is empty"),
    "Parquet cut short": (
        {"north": GOOD[: len(GOOD) // 2], "suffix": "parquet"},
        r"client bank/north: .*north.parquet is damaged or not Parquet \(cut short",
    ),
    "Parquet with bytes changed": (
        {"north": GOOD[:4] + b"\xff" * 60 + GOOD[64:], "suffix": "parquet"},
        "client bank/north: .*north.parquet is damaged or not Parquet",
    ),
    "CSV called Parquet": ({"suffix": "parquet"}, "north.parquet is damaged or not Parquet"),
    "not CSV": ({"north": b"\x89PNG\r\n\x1a\n\0\0\0"}, "north.csv is neither CSV nor Parquet"),
    "Excel": ({"north": b"PK\x03\x04\0\0secret"}, "is an Excel or zip file; save it as CSV"),
    "a web page": ({"north": "<html>\n<p>secret</p>\n"}, "has no id column 'id'; say which"),
    "UTF-16": ({"north": NORTH.encode("utf-16")}, "north.csv is not UTF-8 text; save it as"),
    "Latin-1 ids": ({"north": NORTH.replace("a", "ä").encode("latin-1")}, "not UTF-8 text"),
    "Latin-1 cells": ({"north": NORTH.replace("baker", "bäker").encode("latin-1")}, "not UTF-8"),
    "Latin-1 header": ({"north": NORTH.replace("job", "jöb").encode("latin-1")}, "not UTF-8"),
    "ragged lines": (
        {"north": NORTH + "secret,1\n"},
        "north.csv has 1 lines that do not fit its header: line 4 has 2 cells, the header 4",
    ),
    "a quote left open": ({"north": NORTH + '"secret,1,2,3\n'}, "north.csv"),
    "a name twice": ({"north": NORTH.replace("job", "age")}, "has several columns 'age'; rename"),
    "an index of pandas": (
        {"north": "," + NORTH.replace("\n", "\n0,", 2)},
        "column 1 of .*north.csv has no name .*index=False",
    ),
    "no common ids": (
        {"insurer": "id,claims\n001,2\n0002,3\n"},
        "no id is in every silo: bank has 4 ids, text of 4 characters; insurer has 2 ids, digits "
        "with leading zeros of 3 to 4 characters; ids must be written alike",
    ),
    "nothing to learn from": (
        {"insurer": "id\nanna\nbert\n"},
        "silo insurer has no columns to learn from",
    ),
    "ids as fractions": (
        {"north": packed(id=[1.5], age=[1], job=["x"], left=["no"])},
        "ids must be whole numbers or text, not fractions",
    ),
    "ids as lists": (
        {"north": packed(id=[[1]], age=[1], job=["x"], left=["no"])},
        "ids must be whole numbers or text, not list",
    ),
    "lists": (
        {"north": packed(id=["anna"], age=[[1]], job=["x"], left=["no"])},
        "column 'age': list.* cannot be made into numbers; name it in `drop`",
    ),
    "names near the id's, without a header": (
        {"north": "Anderson,40,clerk,no\nbert,40,clerk,yes\n", "id": "person"},
        "north.csv has no id column 'person'; is column 1 meant. It is nearly called so",
    ),
    "binary": (
        {"north": packed(id=["anna"], age=[b"\xffsecret"], job=["x"], left=["no"])},
        "column 'age': not UTF-8 text; save the file in UTF-8 or drop the column",
    ),
    "intervals": (
        {
            "north": packed(
                id=["anna"],
                age=pa.array([datetime.timedelta(days=2020)], pa.duration("s")),
                job=["x"],
                left=["no"],
            )
        },
        "column 'age': dates and times cannot be used",
    ),
    "times of a zone that nobody knows": (
        {
            "north": packed(
                id=["anna"],
                age=pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("s", "Mars/Sea")),
                job=["x"],
                left=["no"],
            ),
            "categories": ["age"],
        },
        "north.csv, column 'age': cannot be read .ArrowInvalid.; convert it or name it in `drop`",
    ),
    "text that is not UTF-8 in Parquet": (
        {
            "north": packed(
                id=["anna"],
                age=pa.array([b"\xffsecret"], pa.binary()).cast(pa.string(), safe=False),
                job=["x"],
                left=["no"],
            ),
        },
        "north.csv is damaged or not Parquet",
    ),
    "gzip, cut short": ({"north": gzip.compress(NORTH.encode())[:-9]}, "north.csv is damaged gzip"),
    "gzip, and more": (
        {"north": gzip.compress(NORTH.encode()) + b"secret"},
        "north.csv is damaged gzip; pack or copy it again",
    ),
    "cells beyond what csv takes": (
        {"north": NORTH + '"secret' + "x" * 200_000 + "\n"},
        "north.csv cannot be read as CSV; check its quotes",
    ),
    "ragged after blank lines": (
        {"north": "\n\n" + NORTH.replace("baker", '"ba\nker"') + "\nsecret,1\n"},
        "1 lines that do not fit its header: line 8 has 2 cells, the header 4",
    ),
    "labels of other classes": (
        {"goal": "binary", "south": SOUTH.replace("yes", "secret")},
        "3 different values, not two",
    ),
    "test cells": (
        {
            "north": NORTH.replace("left", "left,test")
            .replace("no", "no,0")
            .replace("yes", "yes,secret"),
            "south": SOUTH.replace("left", "left,test")
            .replace("no", "no,0")
            .replace("yes", "yes,1"),
            "test": "test",
        },
        "1 cells of the test column 'test' are not 0, 1, true or false .the first in row 2",
    ),
    "too few in common": (
        {"insurer": "id,claims\nANNA,1\nBERT,2\ncarl,3\nDORA,5\n"},
        "only 25 % of the ids of silo bank, the smallest, are in every silo, and min_match asks "
        r"for 50 %: bank 1 of 4 \(25 %\), insurer 1 of 4 \(25 %\); client bank/north 0 of 2 "
        r"\(0 %\). 3 more ids would match if case were ignored: write ids alike in all files",
    ),
    "very long ids": ({"north": NORTH.replace("anna", "a" * 300)}, "longer than 200 characters"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_files(read, case):
    changes, message = CASES[case]
    with pytest.raises(DataError, match=message) as problem:
        read(**changes)
    assert "\n" not in str(problem.value)
    text = "".join(traceback.format_exception(problem.value))  # as --debug shows it
    assert not [word for word in PRIVATE if word in text]


def test_the_files_are_good_before_they_are_spoilt(read):
    assert read().train.size == 4
    assert read(north=GOOD, suffix="parquet").train.size == 4


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="is not a file; give one CSV or Parquet file a client"):
        read_tables({"bank": tmp_path})


def test_ids_are_shown_when_asked_for(read):
    with pytest.raises(DataError, match="in 2 rows: anna; keep one row of each"):
        read(north=NORTH + "anna,31,baker,no\n", show_ids=True)
    with pytest.raises(DataError, match=r"\(north and south\): anna, bert; keep each"):
        read(south=NORTH, show_ids=True)
    text = NORTH + "".join(f"x{k},1,baker,no\n" * 2 for k in range(9))
    with pytest.raises(DataError, match=r"9 ids .* in 18 rows: x0, x1, x2, x3, x4, ...; keep"):
        read(north=text, show_ids=True)


def test_hashed_ids_are_not_shown_plain(read):
    with pytest.raises(DataError) as problem:
        read(north=NORTH + "anna,1,baker,no\n", show_ids=True, ids="hashed", salt="pepper")
    assert "anna" not in str(problem.value)


def test_free_text_is_told_apart_from_categories(read):
    rows = "".join(f"p{k},1,text {k},no\n" for k in range(200))
    insurer = INSURER + "".join(f"p{k},1\n" for k in range(200))
    with pytest.raises(DataError, match=r"silo bank, column 'job': 202 categories .* name it in"):
        read(north=NORTH + rows, insurer=insurer)
    data = read(north=NORTH + rows, insurer=insurer, drop=["job"])
    assert data.columns["bank"] == ("age",)


def test_dates_can_be_dropped_or_taken_as_text(read):
    north = NORTH.replace("30", "2020-01-01").replace("40", "2021-01-01")
    assert read(north=north, drop=["age"]).train.size == 4
    assert "age = 2020-01-01" in read(north=north, categories=["age"]).columns["bank"]


def test_an_index_of_pandas_can_be_dropped(read):
    def indexed(text):
        return "".join(f"{k},{line}\n" for k, line in enumerate(text.splitlines()))[1:]

    data = read(north=indexed(NORTH), south=indexed(SOUTH), drop=[""])
    assert data.columns["bank"] == ("age", "job = baker", "job = clerk")


def test_a_column_that_only_some_clients_have_can_be_dropped(read):
    assert read(south="id,age,left\ncarl,1,no\ndora,2,no\n", drop=["job"]).train.size == 4
