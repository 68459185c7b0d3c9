"""A branch that writes ids otherwise than everybody: refused, or said where nobody overlooks it."""

import json

import pytest

RUN = """\
[data]
id = "person"
label = "late"

[data.silos]
bank = {north = "north.csv", south = "south.csv"}
shop = "shop.csv"

[algorithm]
name = "tdcd-private-labels"
batch = 10
rounds = 1

[output]
report = false
"""


@pytest.fixture
def tables(tmp_path):
    """South has 60 of 100 people, and writes p for P."""
    (tmp_path / "run.toml").write_text(RUN)
    for name, write, people in (
        ("north", "P{i:04d},{i}.5,{odd}", range(40)),
        ("south", "p{i:04d},{i}.5,{odd}", range(40, 100)),
        ("shop", "P{i:04d},{i}", range(100)),
    ):
        head = "person,orders" if name == "shop" else "person,income,late"
        rows = [write.format(i=i, odd=i % 2) for i in people]
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    return tmp_path


MORE = "60 more ids would match if case were ignored: write ids alike in all files"
LINES = (
    "matched: bank 40 of 100 rows (40 %): north 40 of 40 (100 %), south 0 of 60 (0 %)",
    "matched: shop 40 of 100 rows (40 %)",
)


@pytest.mark.parametrize("verb", ["check", "run", "explain", "rehearse"])
def test_it_is_refused(verb, tables, fedloom):
    out = ["--out", tables / "out"] if verb in ("run", "rehearse") else []
    code, _, err = fedloom(verb, tables / "run.toml", *out)
    assert code == 3, err
    assert len(err.splitlines()) == 1
    assert "only 40 % of the ids of silo bank, the smallest, are in every silo" in err
    assert "client bank/south 0 of 60 (0 %)" in err
    assert MORE in err
    assert not list((tables / "out").glob("*"))


def test_check_says_it_in_the_verdict(tables, fedloom):
    few = ("--set", "data.min_match=0.4")
    code, out, err = fedloom("check", tables / "run.toml", *few)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert set(LINES) < set(lines)
    assert f"note: {MORE}" in lines
    assert (
        lines[-1] == f"{tables / 'run.toml'}: sound, but without training rows: client bank/south"
    )
    code, out, _ = fedloom("check", tables / "run.toml", *few, "--json")
    verdict = json.loads(out)
    assert verdict["without_rows"] == ["bank/south"]
    assert verdict["data"]["matched"] == {
        "share": 0.4,
        "clients": {"bank": {"north": [40, 40], "south": [0, 60]}, "shop": {"all": [40, 100]}},
        "more": {"case were ignored": 60},
    }


def test_run_says_it_before_it_trains(tables, fedloom):
    few = ("--set", "data.min_match=0.4", "--out", tables / "out")
    code, _, err = fedloom("run", tables / "run.toml", *few)
    assert code == 0
    assert err.splitlines()[:4] == [
        *LINES,
        f"note: {MORE}",
        "note: without training rows: client bank/south",
    ]
    code, _, err = fedloom("run", "--resume", tables / "out", "--quiet")
    assert (code, err) == (0, "")


def test_all_is_well_where_ids_are_written_alike(tables, fedloom):
    (tables / "south.csv").write_text((tables / "south.csv").read_text().replace("\np", "\nP"))
    code, out, _ = fedloom("check", tables / "run.toml")
    assert code == 0
    assert "matched: shop 100 of 100 rows (100 %)" in out.splitlines()
    assert out.splitlines()[-1] == f"{tables / 'run.toml'}: sound"
    assert "more ids would match" not in out


def test_no_share_at_all(tables, fedloom):
    code, _, err = fedloom("check", tables / "run.toml", "--set", "data.min_match=2")
    assert code == 2
    assert "data.min_match: must be between 0 and 1, not 2" in err


def test_clients_of_a_cut_that_get_no_rows_are_named_too(run_file, fedloom):
    code, out, err = fedloom("check", run_file, "--set", "partition.clients=[2, 200]")
    assert code == 0, err
    last = out.splitlines()[-1]
    assert "sound, but without training rows: client" in last
    assert last.endswith("others")
    assert "matched:" not in out
