"""How well ids match: said for every client, refused where it cannot be right, with the reason."""

import pytest

from fedloom.core.errors import DataError, SettingError
from fedloom.data.tables.id_forms import FORMS, count_in_all, forms_of
from fedloom.data.tables.id_overlap import Overlap
from fedloom.data.tables.prepare import Preparation
from fedloom.data.tables.read import read_rows, read_tables

FORM = {form.name: form for form in FORMS}


@pytest.mark.parametrize(
    ("name", "first", "other"),
    [
        ("characters", "P\u200b12\ufeff3", "P123"),
        ("characters", "\uff30\uff11\uff12\uff13", "P123"),
        ("characters", "P 12\u00a03", "P123"),
        ("case", "p123", "P123"),
        ("case", "stra\u00dfe", "STRASSE"),
        ("zeros", "P000123", "P123"),
        ("zeros", "0012-007", "12-7"),
        ("point", "123.0", "123"),
        ("signs", "P-123/4", "P1234"),
        ("together", " p-00123.0", "P123"),
        ("digits", "DE-00123", "123"),
    ],
)
def test_forms(name, first, other):
    assert first != other
    assert FORM[name].of(first) == FORM[name].of(other)


@pytest.mark.parametrize(
    ("name", "first", "other"),
    [
        ("zeros", "100", "1"),
        ("zeros", "P0", "P"),
        ("zeros", "P10", "P1"),
        ("point", "1.05", "15"),
        ("point", "12.50", "12.5"),
        ("case", "P1", "Q1"),
        ("digits", "anna7", "bert7"),
    ],
)
def test_what_stays_different(name, first, other):
    assert FORM[name].of(first) != FORM[name].of(other)


def test_a_form_of_several_ids_says_nothing():
    assert forms_of(["7", "07", "8", "-"], FORM["together"]) == ["8"]
    assert (
        count_in_all([[["a", "b"], ["b", "c"]], [["a", "b", "c", "d"]]]) == 2
    )  # b is at two clients


def people(start, stop, write="P{:05d}", more=""):
    return "".join(f"{write.format(i)},{i % 7}{more and f',{i % 2}'}\n" for i in range(start, stop))


@pytest.fixture
def files(tmp_path):
    """A bank of two branches and a shop, of 100 people; `south`: how the branch writes its ids,
    of how many people."""

    def make(south="P{:05d}", of=60, shop="P{:05d}"):
        tables = {
            "north": "person,income,late\n" + people(0, 100 - of, more="late"),
            "south": "person,income,late\n" + people(100 - of, 100, south, "late"),
            "shop": "person,orders\n" + people(0, 100, shop),
        }
        paths = {name: tmp_path / f"{name}.csv" for name in tables}
        for name, text in tables.items():
            paths[name].write_text(text)
        return {"bank": {"north": paths["north"], "south": paths["south"]}, "shop": paths["shop"]}

    return make


def read(files, **options):
    return read_tables(files, **{"id": "person", "label": "late", **options})


def test_all_match(files):
    data = read(files())
    assert data.overlap == Overlap(
        {"bank": {"north": (40, 40), "south": (60, 60)}, "shop": {"all": (100, 100)}}
    )
    assert data.overlap.share == 1
    assert data.lines() == [
        "matched: bank 100 of 100 rows (100 %): north 40 of 40 (100 %), south 60 of 60 (100 %)",
        "matched: shop 100 of 100 rows (100 %)",
    ]


@pytest.mark.parametrize("ids", [{}, {"ids": "hashed", "salt": "pepper of the house"}])
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("p{:05d}", "60 more ids would match if case were ignored:"),
        ("P{}", "60 more ids would match if leading zeros were ignored:"),
        ("P{:05d}.0", "60 more ids would match if '.0' at the end were ignored:"),
        ("\ufeffP{:05d}", "60 more ids would match if blanks, invisible and look-alike"),
        ("{}", "60 more ids would match if only digits counted:"),
        ("p{}", "60 more ids would match if all of blanks, case, leading zeros"),
    ],
)
def test_a_branch_that_writes_ids_otherwise(files, written, said, ids):
    with pytest.raises(DataError) as problem:
        read(files(written), **ids)
    text = str(problem.value)
    assert text.startswith("only 40 % of the ids of silo bank, the smallest, are in every silo")
    assert "client bank/south 0 of 60 (0 %)" in text
    assert said in text
    assert text.endswith("If so few are meant to match, lower min_match")
    data = read(files(written), min_match=0.4, **ids)
    assert data.train.size + data.test.size == 40
    assert any(note.startswith(said) for note in data.notes)
    assert [str(client) for client in data.idle] == ["bank/south"]
    assert data.lines()[-1] == "note: without training rows: client bank/south"
    assert data.summary()["matched"]["clients"]["bank"] == {"north": [40, 40], "south": [0, 60]}


def test_several_ways_of_writing_are_told_apart(files):
    """Case helps some, zeros help more; both together help all."""
    given = files("p{:05d}", of=10)
    path = given["bank"]["north"]
    path.write_text(
        "person,income,late\n" + people(0, 30, "P{}", "late") + people(30, 90, more="1")
    )
    notes = read(given).notes
    assert (
        "10 more ids would match if case were ignored, 30 if leading zeros were ignored, 40 if all "
        "of blanks, case, leading zeros, '.0' and signs were ignored: write ids alike in all files"
    ) in notes


def test_the_smallest_silo_counts(files, tmp_path):
    """A shop of everyone in the country beside a bank of some: all of the bank is enough."""
    given = files()
    given["shop"].write_text("person,orders\n" + people(0, 5000))
    assert read(given).overlap.smallest == "bank"
    given["other"] = tmp_path / "other.csv"
    given["other"].write_text("person,visits\n" + people(45, 1000))
    data = read(given)
    assert data.overlap.share == 0.55
    assert data.overlap.silos == {"bank": (55, 100), "shop": (55, 5000), "other": (55, 955)}
    given["other"].write_text("person,visits\n" + people(51, 1000))
    with pytest.raises(DataError, match="only 49 % of the ids of silo bank, the smallest"):
        read(given)


def test_rows_without_a_label_do_not_count_as_mismatches(files):
    given = files()
    path = given["bank"]["south"]
    path.write_text(path.read_text().replace(",1\n", ",\n").replace(",0\n", ",\n", 29))
    assert read(given).overlap.silos == {"bank": (41, 41), "shop": (41, 100)}


def test_nothing_matches_and_why(files):
    with pytest.raises(DataError, match=r"no id is in every silo: bank has 100 ids, .*; 100 more"):
        read(files(shop="p{:05d}"), min_match=0)


def test_an_overlap_that_is_meant_to_be_small_is_no_error(files):
    given = files()
    given["shop"].write_text("person,orders\n" + people(90, 1000))
    assert read(given, min_match=0.1).overlap.more == {}
    with pytest.raises(DataError, match=r"min_match asks for 50 %: .*\)\. If so few are meant"):
        read(given)
    for wrong in (-0.1, 1.5):
        with pytest.raises(SettingError, match="min_match must be between 0 and 1"):
            read(given, min_match=wrong)


def test_new_rows_are_held_to_the_same(files):
    saved = Preparation.from_json(read(files()).preparation.to_json())
    new = files("p{:05d}")
    with pytest.raises(DataError, match="60 more ids would match if case were ignored"):
        read_rows(new, saved)
    notes = []
    assert read_rows(new, saved, min_match=0, notes=notes).size == 40
    assert any("60 more ids would match if case were ignored" in note for note in notes)


def test_many_clients_are_named_from_the_worst():
    clients = {f"c{k:02d}": (100 if k else 3, 100) for k in range(40)}
    overlap = Overlap({"bank": clients, "shop": {"all": (3903, 4000)}})
    line = overlap.lines()[0]
    assert line.startswith("matched: bank 3,903 of 4,000 rows (97 %): c00 3 of 100 (3 %), c01 100")
    assert line.endswith("and 28 others of at least 100 %")
    nearly = Overlap({"a": {"all": (999, 1000)}, "b": {"all": (999, 2000)}})
    assert nearly.lines()[0] == "matched: a 999 of 1,000 rows (99 %)"
