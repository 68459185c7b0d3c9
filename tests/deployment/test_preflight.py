"""fedloom check --party: what is wrong is named before anyone is waited for."""

import json
import re
import time
from dataclasses import replace

import pytest

from fedloom.cli.main import main
from fedloom.config.runfile import RunFile
from fedloom.core import seal
from fedloom.core.errors import SettingError
from fedloom.core.topology import Client
from fedloom.deployment.keys.allow_list import write_list
from fedloom.deployment.keys.certificates import Authority, save
from fedloom.deployment.party.host import Host
from fedloom.deployment.party_file import PartyFile
from fedloom.deployment.rehearsal import Rehearsal
from tests.deployment.test_processes import RUN

ONE = Client("a", "0")


@pytest.fixture
def prepared(tmp_path):
    """Files of all parties, and hub a listening."""
    made = Rehearsal(RunFile.parse(RUN.replace("150", "1")), tmp_path / "r", {"linger": 0.2})
    made.prepare()
    file = RunFile.read(made.folder / "run.toml")
    hub = Host(file, PartyFile.read(made.of("a") / "party.toml"), print)
    hub.folder.mkdir()
    transport = hub.transport()
    transport.open()
    made.hub = transport
    yield made
    transport.close()


def check(made, party, capsys, *options):
    words = ["check", str(made.folder / "run.toml"), "--party", str(made.of(party) / "party.toml")]
    capsys.readouterr()
    code = main([*words, *options, "--json"])
    findings = json.loads(capsys.readouterr().out)
    return code, {finding["what"]: (finding["good"], finding["message"]) for finding in findings}


def test_a_party_that_is_ready(prepared, capsys):
    code, client = check(prepared, ONE, capsys)
    assert code == 0
    assert client["peer a"][1].endswith("it is hub a")
    assert client["certificate"] == (None, "client a/0, 1 days left")  # soon: worth a note
    code, hub = check(prepared, "b", capsys)
    assert code == 0
    assert hub["allow-list"] == (True, "all 2 peers are on it")
    assert client["fingerprint"] == hub["fingerprint"]
    assert (
        check(prepared, "b", capsys, "--set", "engine.seed=9")[1]["fingerprint"]
        != (hub["fingerprint"])
    )


@pytest.mark.parametrize(
    ("ahead", "good", "message"),
    [
        (0.0, True, r"0\.\d s (ahead of|behind) ours"),
        (20.0, None, r"(19|20)\.\d s ahead of ours"),
        (-20.0, None, r"(19|20)\.\d s behind ours"),
        (-400.0, False, r"(399|400)\.\d s behind ours: one of us will refuse new certificates"),
    ],
)
def test_clocks_are_compared(prepared, capsys, ahead, good, message):
    prepared.hub._peering.clock = lambda: time.time() + ahead
    code, findings = check(prepared, ONE, capsys)
    assert code == (2 if good is False else 0)
    assert findings["clock of a"][0] is good
    assert re.fullmatch(message, findings["clock of a"][1])


def test_a_certificate_that_is_over_by_the_other_clock(prepared, capsys):
    """It has some minutes left, by ours."""
    made = Authority.read(prepared.folder / "keys" / "a").issue(ONE, 250 / 86400)
    save(prepared.of(ONE), "party", *made)
    write_list(prepared.of("a") / "allow.toml", {str(ONE): [made[0].fingerprint]})
    prepared.hub._peering.clock = lambda: time.time() + 280
    code, findings = check(prepared, ONE, capsys)
    assert code == 2
    assert "by it, our certificate is not valid" in findings["clock of a"][1]


def test_who_is_not_on_the_list_is_not_told_the_time(prepared, capsys):
    """And so learns before the run that the other does not expect it."""
    (prepared.of("a") / "allow.toml").write_text("")
    code, findings = check(prepared, ONE, capsys)
    assert code == 2
    assert "its certificate is not on the allow-list" in findings["clock of a"][1]


def test_what_is_wrong_is_named(prepared, capsys):
    own = prepared.of(ONE)
    rows = own / "rows.safetensors"
    saved_rows, party = rows.read_bytes(), (own / "party.toml").read_text()
    rows.write_bytes(saved_rows[:-5])
    assert check(prepared, ONE, capsys)[1]["rows"][0] is False
    rows.write_bytes((prepared.of(Client("b", "0")) / "rows.safetensors").read_bytes())
    assert check(prepared, ONE, capsys)[1]["rows"][0] is False
    rows.write_bytes(saved_rows)
    (own / "party.toml").write_text(re.sub(r"127.0.0.1:\d+", "127.0.0.1:1", party))
    code, findings = check(prepared, ONE, capsys)
    assert (code, findings["peer a"][0]) == (2, False)
    assert "not reached" in findings["peer a"][1]


def test_a_limit_on_a_kind_that_nobody_sends(prepared):
    """It would protect from nothing."""
    own = PartyFile.read(prepared.of("b") / "party.toml")
    limited = replace(own, limits=replace(own.limits, norms={"updates": 10.0}))
    host = Host(RunFile.read(prepared.folder / "run.toml"), limited, print)
    with pytest.raises(SettingError, match=r"limits.norms: 'updates'.*update"):
        host.transport()


def test_a_stranger_learns_that_it_is_one(prepared, capsys):
    save(prepared.of(ONE), "party", *Authority.new("a", 30).issue(ONE, 30))
    code, findings = check(prepared, ONE, capsys)
    assert code == 2
    assert findings["certificate"] == (False, "it is not from this organisation's CA")
    assert findings["peer a"][0] is False
    assert "does not know us" in findings["peer a"][1]


def test_what_the_algorithm_cannot_run_on_is_named_before(prepared, capsys):
    """As `fedloom check` does from above, each party for itself."""
    code, findings = check(prepared, "b", capsys, "--set", "algorithm.batch=100000")
    assert code == 2
    assert findings["rows"][0] is False
    assert "batch (B) is 100000, but there are only" in findings["rows"][1]
    saved = prepared.folder / "agreement.json"
    seal.write_json(saved, {**seal.read_json(saved), "labelled": ["b"]})
    assert "silo a holds no labels" in check(prepared, "b", capsys)[1]["rows"][1]
    assert "labels, unlike the agreement" in check(prepared, ONE, capsys)[1]["rows"][1]
