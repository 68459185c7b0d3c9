"""Certificates as people make them, and the gate that looks at them."""

import json
import os

import pytest

from fedloom.cli.main import main
from fedloom.core.errors import RefusedError
from fedloom.core.topology import Client
from fedloom.deployment.keys.allow_list import Gate, write_list
from fedloom.deployment.keys.certificates import Authority, Certificate, party_of, save

NORTH = Client("bank", "north")


def keys(*words):
    return main(["keys", *map(str, words)])


@pytest.fixture
def bank(tmp_path):
    assert keys("ca", "bank", "--at", tmp_path / "bank") == 0
    assert keys("issue", "bank", "bank/north", "--at", tmp_path / "bank") == 0
    return tmp_path / "bank"


@pytest.fixture
def gate(tmp_path, bank):
    assert keys("allow", tmp_path / "allow.toml", *bank.glob("*.pem")) == 0
    return Gate(tmp_path / "allow.toml", {"bank": Certificate.read(bank / "ca.pem")})


def test_a_certificate_says_whose_it_is(bank):
    assert Certificate.read(bank / "bank.pem").party == "bank"
    assert Certificate.read(bank / "bank-north.pem").party == NORTH
    assert Certificate.read(bank / "ca.pem").party is None


@pytest.mark.parametrize("party", ["bank", Client("a b", "ü/%"), "server"])
def test_any_name_survives(party):
    made, _ = Authority.new("x", 1).issue(party, 1)
    assert made.party == party


def test_private_keys_are_private(bank):
    modes = {path.name: os.stat(path).st_mode & 0o077 for path in bank.glob("*.key")}
    assert modes == dict.fromkeys(("ca.key", "bank.key", "bank-north.key"), 0)


def test_nothing_is_overwritten_unasked(bank, capsys):
    assert keys("ca", "bank", "--at", bank) == 5
    assert keys("issue", "bank", "--at", bank) == 5
    assert keys("rotate", "bank/south", "--at", bank) == 3
    assert keys("issue", "insurer", "--at", bank) == 2
    assert "whose CA this is" in capsys.readouterr().err


def test_show_tells_the_days_left(bank, capsys):
    assert keys("rotate", "bank/north", "--at", bank, "--days", 3) == 0
    capsys.readouterr()
    assert keys("show", *sorted(bank.glob("*.pem")), "--json") == 0
    states = {
        certificate["of"]: certificate["state"]
        for certificate in json.loads(capsys.readouterr().out)
    }
    assert states == {"hub bank": "valid", "client bank/north": "expires soon", "bank CA": "valid"}
    assert keys("show", bank / "bank.pem") == 0
    assert "hub bank" in capsys.readouterr().out


def test_the_gate_lets_in_who_is_listed(gate, bank):
    assert gate.admit((bank / "bank-north.pem").read_bytes()) == NORTH
    assert gate.admit((bank / "bank.pem").read_bytes()) == "bank"


def test_an_edit_takes_effect_at_once(gate, bank):
    pem = (bank / "bank-north.pem").read_bytes()
    gate.admit(pem)
    assert keys("revoke", gate.allow, "bank/north") == 0
    with pytest.raises(RefusedError, match="not on the allow-list"):
        gate.admit(pem)
    assert keys("allow", gate.allow, bank / "bank-north.pem") == 0
    assert gate.admit(pem) == NORTH
    gate.allow.write_text("not = a list")
    with pytest.raises(RefusedError, match="not on the allow-list"):
        gate.admit(pem)


def test_old_and_new_work_side_by_side(gate, bank):
    old = (bank / "bank-north.pem").read_bytes()
    assert keys("rotate", "bank/north", "--at", bank) == 0
    new = (bank / "bank-north.pem").read_bytes()
    with pytest.raises(RefusedError, match="not on the allow-list"):
        gate.admit(new)
    assert keys("allow", gate.allow, bank / "bank-north.pem") == 0
    assert gate.admit(old) == gate.admit(new) == NORTH


@pytest.mark.parametrize(
    ("organisation", "party", "days", "why"),
    [
        ("bank", NORTH, 365, "not from the CA of bank"),  # another CA of that name
        ("insurer", NORTH, 365, "not from the CA of bank"),  # right CA, wrong silo
        ("bank", Client("mill", "north"), 365, "not from the CA of mill"),
    ],
)
def test_strangers_are_refused(gate, organisation, party, days, why):
    stranger = Authority.new(organisation, 30)
    gate.cas["insurer"] = stranger.certificate
    made, _ = stranger.issue(party, days)
    write_list(gate.allow, {str(party): [made.fingerprint]})
    with pytest.raises(RefusedError, match=why):
        gate.admit(made.pem())


def test_an_expired_certificate_is_refused(gate, bank, tmp_path):
    made, key = Authority.read(bank).issue(NORTH, -1)
    save(tmp_path, "old", made, key)
    assert keys("allow", gate.allow, tmp_path / "old.pem") == 0
    with pytest.raises(RefusedError, match="not valid today"):
        gate.admit(made.pem())


def test_a_ca_is_no_party(gate, bank):
    with pytest.raises(RefusedError, match="names no party"):
        gate.admit((bank / "ca.pem").read_bytes())


@pytest.mark.parametrize("text", ["", "/", "bank/", "/north", "a/b/c", "server/x"])
def test_names_that_are_none(text):
    with pytest.raises(ValueError, match="names no party"):
        party_of(text)
