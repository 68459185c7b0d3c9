"""Organisations that agree on rows by themselves end with what somebody who saw all tables has."""

import json
import random
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from fedloom.config.runfile import RunFile
from fedloom.core.errors import AbortedError, DataError, ExistsError, SettingError
from fedloom.deployment.agreement.align import Alignment
from fedloom.deployment.agreement.messages import FORMS, KINDS, unpacked
from fedloom.deployment.agreement.own_tables import TableSettings
from fedloom.deployment.log import Log
from fedloom.deployment.party_file import PartyFile
from fedloom.deployment.rehearsal import Rehearsal
from fedloom.runs.build import build_data
from fedloom.transports.grpc.transport import GrpcTransport
from tests.helpers.spelled import carried

SALT = "a salt that nobody guesses"
QUICK = {"start": 30.0, "beat": 0.2, "silence": 2.0, "linger": 3.0}
HEAD = {
    "bank/north": "person,income,town,left",
    "bank/south": "person,income,town,left",
    "insurer/all": "person,claims,car",
    "shop/web": "person,visits",
    "shop/store": "person,visits",
}


def tables(folder, people=120):
    """Everyone knows most people; some cells, labels and rows are missing."""
    draw, paths = random.Random(4), {}
    lines = {name: [head] for name, head in HEAD.items()}
    for person in range(people):
        income = draw.gauss(30, 8)
        town = draw.choice(["Ulm", "Bonn", ""])
        left = draw.choice(["yes", "no", "no", ""]) if person % 17 == 0 else "yes"
        left = left if person % 2 else "no"
        if person % 11:
            where = "bank/north" if person % 3 else "bank/south"
            lines[where].append(f"p{person},{income:.2f},{town},{left}")
        if person % 13:
            claims = "" if person % 7 == 0 else draw.randrange(5)
            lines["insurer/all"].append(f"p{person},{claims},{draw.choice(['old', 'new'])}")
        if person % 19:
            where = "shop/web" if person % 4 else "shop/store"
            lines[where].append(f"p{person},{draw.randrange(100)}")
    for name, rows in lines.items():
        head, *rest = rows
        draw.shuffle(rest)
        paths[name] = folder / f"{name.replace('/', '-')}.csv"
        paths[name].write_text("\n".join([head, *rest]) + "\n")
    return paths


def run_text(folder, paths, **more):
    (folder / "salt").write_text(SALT)
    (folder / "salt").chmod(0o600)
    given = {"id": "person", "label": "left", "goal": "binary", "ids": "hashed", **more}
    silos = {}
    for name, path in paths.items():
        silo, client = name.split("/")
        silos.setdefault(silo, {})[client] = str(path)
    lines = ["[data]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
    lines.append(f'salt_file = "{folder / "salt"}"')
    for silo, clients in silos.items():
        lines += [f"[data.silos.{silo}]", *(f'{c} = "{p}"' for c, p in clients.items())]
    return "\n".join(
        [
            *lines,
            "[algorithm]",
            'name = "tdcd-private-labels"',
            "local_steps = 2",
            "batch = 20",
            "rounds = 2",
            "",
        ]
    )


@pytest.fixture
def prepared(tmp_path, request):
    return prepare(tmp_path, **getattr(request, "param", {}))


def prepare(folder, more="", **data):
    """The files of a rehearsal, and what each party needs to align by itself."""
    paths = tables(folder)
    file = RunFile.parse(run_text(folder, paths, **data) + more)
    made = Rehearsal(file, folder / "r", QUICK)
    run = made.prepare()
    for party in run.placement.topology.parties:
        path = made.of(party) / "party.toml"
        text = path.read_text().replace(str(made.folder / "agreement.json"), "own.json")
        text = text.replace('rows = "rows.safetensors"', 'rows = "own.safetensors"')
        path.write_text(text)
        (made.of(party) / "out").mkdir()
    return made, file, run


@pytest.fixture
def passed(monkeypatch):
    """The messages that parties of this process have sent."""
    sent, send = [], GrpcTransport.send
    monkeypatch.setattr(
        GrpcTransport, "send", lambda self, message: (sent.append(message), send(self, message))
    )
    return sent


def aligned(made, file, parties, say=lambda party, line: None):
    """Every party in a thread of its own: {party: agreement or error}."""

    def go(party):
        own = PartyFile.read(made.of(party) / "party.toml")
        try:
            log = Log(made.of(party) / "out", party, partial(say, party))
            return Alignment(file, own, log).go()
        except (DataError, SettingError, AbortedError, ExistsError) as problem:
            return problem

    with ThreadPoolExecutor(len(parties)) as pool:
        return dict(zip(parties, pool.map(go, parties, timeout=120), strict=True))


@pytest.mark.parametrize("prepared", [{}, {"validation": 0.2}], indirect=True)
def test_aligned_apart_is_aligned_together(prepared):
    made, file, run = prepared
    parties = run.placement.topology.parties
    ended = aligned(made, file, parties)
    for party in parties:
        assert not isinstance(ended[party], Exception), f"{party}: {ended[party]}"
        own = made.of(party)
        assert json.loads((own / "own.json").read_text()) == json.loads(
            (made.folder / "agreement.json").read_text()
        )
        own_rows, wanted = load_file(own / "own.safetensors"), load_file(own / "rows.safetensors")
        assert set(own_rows) == set(wanted)
        assert all(own_rows[name].equal(wanted[name]) for name in wanted), party
        own_preparation, reference_preparation = (
            own / f"{name}.preparation.json" for name in ("own", "rows")
        )
        assert own_preparation.read_text() == reference_preparation.read_text()
    text = "".join(path.read_text() for path in made.folder.glob("parties/*/out/*.jsonl"))
    assert "p1" not in text
    assert isinstance(aligned(made, file, ["bank"])["bank"], ExistsError)


def test_weights_of_classes_are_agreed_on(tmp_path, passed):
    """Those of somebody who saw all labels; hubs tell each other sums over their clients only."""
    loss = '{name = "binary-cross-entropy", class_weights = "balanced"}'
    made, file, run = prepare(tmp_path, f"[model]\nloss = {loss}\n", validation=0.3)
    assert run.validation.size > 5
    ended = aligned(made, file, run.placement.topology.parties)
    assert not [problem for problem in ended.values() if isinstance(problem, Exception)], ended
    zeros, ones = torch.bincount(run.placement.labels().long()).tolist()
    assert zeros != ones
    weights = ((zeros + ones) / (2 * zeros), (zeros + ones) / (2 * ones))
    assert run.task.loss.class_weights == weights
    for party, agreement in ended.items():
        saved = json.loads((made.of(party) / "own.json").read_text())
        assert saved == json.loads((made.folder / "agreement.json").read_text())
        assert agreement.facts.class_weights == weights
        assert agreement.facts.task(file).loss.class_weights == weights
    facts = [unpacked(m.payload["told"]) for m in passed if m.kind == "facts"]
    assert {str(told["counts"]) for told in facts} == {str([zeros, ones]), "None"}
    assert not any("counts" in (told or {}) for f in facts for told in f["labels"].values())


def test_neither_ids_nor_the_key_leave_a_client(prepared, passed):
    made, file, run = prepared
    aligned(made, file, run.placement.topology.parties)
    assert {message.kind for message in passed} == set(FORMS)
    people = [f"p{person}" for person in range(100, 120)]
    assert carried(passed, [SALT, *people]) == []
    leaking = passed[0]._replace(
        payload={"ids": torch.tensor([list(b"..p101..")], dtype=torch.uint8)}
    )
    assert carried([leaking], [SALT, *people]) == ["p101"]  # it would be seen


def above(made):
    """What somebody sees who reads all tables."""
    return build_data(RunFile.read(made.folder / "run.toml", ["data.min_match=0"])).overlap


def test_how_well_ids_match_is_said(prepared, passed):
    """A shop that writes its ids otherwise: the same counts as from above, but for clients of other
    silos; a client hears of its own rows only."""
    made, file, run = prepared
    store = made.folder.parent / "shop-store.csv"
    store.write_text(store.read_text().replace("\np", "\nP0"))
    said = defaultdict(list)
    parties = run.placement.topology.parties
    ended = aligned(made, file, parties, lambda party, line: said[str(party)].append(line))
    assert not [problem for problem in ended.values() if isinstance(problem, Exception)], ended
    seen = above(made)
    matched, rows = run.data.overlap.clients["shop"]["store"]  # before
    assert 20 < matched < rows
    assert seen.more == {"all of blanks, case, leading zeros, '.0' and signs were ignored": matched}
    for silo in ("bank", "insurer", "shop"):
        for line in seen.lines():
            whose = line.split()[1]
            short = line if whose == silo else line.split(": ")[0] + ": " + line.split(": ")[1]
            assert short in said[silo]
        assert f"note: {seen.advice}" in said[silo]
        audit = (made.of(silo) / "out" / "audit.jsonl").read_text().splitlines()
        noted = [entry for entry in map(json.loads, audit) if entry["event"] == "matched"]
        assert noted[0]["more"] == seen.more
    assert "note: without training rows: client shop/store" in said["shop"]
    assert said["shop/store"] == [f"matched: 0 of {rows} of our rows (0 %)"]
    variants = [message for message in passed if message.kind == "variants"]
    assert len(variants) == 5
    hashes = {
        bytes(row)
        for message in passed
        if message.kind == "hashes"
        for row in message.payload["ids"].numpy()
    }
    for message in variants:
        for tensor in message.payload.values():
            short = [bytes(row) for row in tensor.numpy()]
            assert short == sorted(set(short))  # in no order that could tell whose they are
            assert not {row[:8] for row in hashes} & {*short}


def test_too_poor_a_match_ends_it_before_sums_are_told(prepared, passed):
    made, file, run = prepared
    web = made.folder.parent / "shop-web.csv"
    web.write_text(re.sub(r"\np(\d*[0-6],)", r"\nP\1", web.read_text()))
    ended = aligned(made, file, run.placement.topology.parties)
    problems = [str(problem) for problem in ended.values()]
    assert all(isinstance(problem, DataError) for problem in ended.values()), ended
    assert len(set(problems)) == 1
    seen = above(made)
    common, rows = seen.silos[seen.smallest]
    for why in problems:
        assert f"only {100 * common // rows} % of the ids of silo {seen.smallest}" in why
        assert f"{seen.advice}. If so few are meant to match" in why
        assert "client shop" not in why.partition(":")[2]
    lost = run.data.overlap.silos["shop"][0] - common
    assert seen.advice.startswith(f"{lost} more ids would match if case were ignored")
    assert {message.kind for message in passed} == {*KINDS[: KINDS.index("kinds") + 1]}


@pytest.mark.parametrize(
    ("change", "files", "why"),
    [
        (lambda text: text + "p5,1\n" * 2, ["web"], "ids occur more than once"),
        (lambda text: text + "p4,1\np5,1\n", ["web", "store"], "have rows of the same ids|once"),
        (lambda text: text.replace("visits", "hits"), ["web"], "different columns"),
        (lambda text: text.replace("\np", "\nq"), ["web", "store"], "no id is in every silo"),
        (lambda text: text + "p777,Ulm\n", ["web"], "numbers and text are mixed"),
        (lambda text: text + "p777,Ulm,Bonn\n", ["web"], "do not fit its header"),
        (lambda text: text.replace("\np", "\n,Ulm", 1), ["store"], "do not fit its header"),
        (lambda text: text[text.index("\n") + 1 :], ["store"], "is there a header"),
    ],
)
def test_what_does_not_fit_ends_it_for_everyone(prepared, change, files, why):
    made, file, run = prepared
    for path in (made.folder.parent / f"shop-{name}.csv" for name in files):
        path.write_text(change(path.read_text()))
    ended = aligned(made, file, run.placement.topology.parties)
    assert all(isinstance(problem, Exception) for problem in ended.values()), ended
    assert any(re.search(why, str(problem)) for problem in ended.values()), ended
    assert not (made.of("bank") / "own.json").exists()
    logs = [path.read_text() for path in made.folder.glob("parties/*/out/*.jsonl")]
    assert len(logs) == 2 * len(ended)
    output = "\n".join([*logs, *map(str, ended.values())])
    assert not re.findall(r"\b[pq]\d+\b|Ulm|Bonn", output)  # nobody's id, nobody's cell


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ids": "plain"}, "ids = .hashed. is needed"),
        ({"goal": None}, "goal is needed"),
        ({"test": "split"}, "test must be a share"),
    ],
)
def test_what_organisations_cannot_do_is_said_before(tmp_path, given, why):
    text = run_text(tmp_path, tables(tmp_path), **given).replace("goal = null\n", "")
    if given.get("ids") == "plain":
        text = text.replace(f'salt_file = "{tmp_path / "salt"}"\n', "")
    with pytest.raises(SettingError, match=why):
        TableSettings.of(RunFile.parse(text))
