"""Noise of real parties: from their secrets, never the same for two releases, booked on disk."""

import json
import math
import shutil

import msgspec
import pytest
import torch

from fedloom.cli.main import main
from fedloom.config.fingerprint import fingerprint
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.errors import AbortedError
from fedloom.core.placed import Rows
from fedloom.core.topology import Client
from fedloom.deployment.agreement.agreement import Agreement
from fedloom.deployment.connect import Connections
from fedloom.deployment.party.privacy_book import BOOK, Page
from fedloom.deployment.party.resume import RoundLog
from fedloom.deployment.party_file import PartyFile
from fedloom.deployment.rehearsal import SECRET
from fedloom.fabric.kinds import Key, Message
from fedloom.runs.build import build_data, build_run
from fedloom.transports import wire
from tests.deployment.test_crashes import play
from tests.deployment.test_processes import ONE, SLOW, assert_replays, begin, kill, reach, rehearsal  # noqa: F401
from tests.deployment.test_rollback import backed_up, ended, restored

CLIP, NOISE, LR, SHARE = 1.0, 4.0, 0.5, 50.0
RUN = f"""\
[data]
name = "iris"

[partition]
clients = [2, 1]

[model]
name = "linear"

[algorithm]
local_steps = 2
lr = {LR}
batch = 90
rounds = ROUNDS

[algorithm.privacy]
mode = "trained"
clip = {CLIP}
noise = {NOISE}
gradient_clip = 1.0
gradient_noise = {SHARE}
"""
FROZEN = """\
[data]
name = "iris"

[partition]
clients = [2, 1]

[model]
name = "mlp"
hidden = [4]
embedding = 3
head = {name = "linear"}

[algorithm]
local_steps = 3
batch = 30
rounds = ROUNDS

[algorithm.privacy]
mode = "frozen"
clip = 1.0
epsilon = 8.0
"""


def text_of(text, rounds, seed=0):
    return text.replace("ROUNDS", str(rounds)) + f"\n[engine]\nseed = {seed}\n"


def share_secrets(federation, other):
    """Give the parties of a federation the secrets of another's."""
    for folder in (federation.folder / "parties").iterdir():
        shutil.copy(folder / SECRET, other.folder / "parties" / folder.name / SECRET)


# Never the same


def released(federation, hub):
    """The embeddings of the round going on, as this hub's disk has them: {client: [rows]}."""
    frames = {}
    for path in (federation.of(hub) / "out").glob("round-*.msgpack"):
        log = msgspec.msgpack.decode(path.read_bytes(), type=RoundLog)
        for silo, name, frame in log.heard:
            message = wire.decode(frame, log.run, Client(silo, name), hub)
            if message.kind == "embedding":
                frames[Client(silo, name)] = message.payload
    return frames


def noise_of(run, client, theta, sent):
    """What is not the client's own embedding of its rows in round 0, in standard deviations."""
    part, ids = run.fed.parts.value[client.silo], run.algorithm.ids(run.fed, 0)
    owner, names = run.placement.owner[client.silo], run.placement.topology.of(client.silo)
    rows = [row for row in ids.flatten().tolist() if names[owner[row]] == client]
    clean = part.embed(theta, run.placement.x[client.silo][rows])
    return (sent - clean).flatten() / NOISE


def assert_independent(first, second):
    """Two samples of the same noise would cancel."""
    count = len(first)
    assert count > 60
    assert float((first - second).std()) == pytest.approx(math.sqrt(2), abs=5 / math.sqrt(count))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 4 / math.sqrt(count)
    for rehearsed in (first, second):
        assert float(rehearsed.std()) == pytest.approx(1, abs=4 / math.sqrt(count))


def test_two_runs_with_one_secret_have_no_noise_in_common(rehearsal):  # noqa: F811
    """Of the same rows, with other seeds: what a hub could subtract."""
    releases = []
    for seed in (0, 1):
        federation = rehearsal(text_of(RUN, 1, seed), on_missing_client="skip", deadline=60.0)
        run = federation.prepare()
        if releases:
            share_secrets(releases[0][0], federation)
        for party in run.placement.topology.parties:
            federation.start(party, crash="before checkpoint:1" if party == "b" else None)
        assert federation.processes["b"].wait(SLOW) == -9
        federation.stop()
        file = RunFile.read(federation.folder / "run.toml")
        releases.append((federation, build_run(file, build_data(file), secrets=federation.secrets)))
    (first, run), (second, again) = releases
    client = Client("b", "0")
    theta = [played.fed.parts.value["b"].initial(played.fed.streams) for played in (run, again)]
    assert tree.largest_difference(theta[0].block, theta[1].block) > 0.01
    noise = [
        noise_of(played, client, t, released(made, "b")[client])
        for made, played, t in zip((first, second), (run, again), theta, strict=True)
    ]
    assert_independent(*noise)


class Hub:
    """A hub that a test plays, of a federation that was rehearsed so far."""

    def __init__(self, federation, name):
        file, own = (
            federation.folder / "run.toml",
            PartyFile.read(federation.of(name) / "party.toml"),
        )
        agreed = Agreement.read(federation.folder / "agreement.json")
        run = fingerprint(RunFile.read(file), agreed.to_json())
        links = Connections(own, agreed.topology)
        self.name, self.link = name, links.transport(run, agreed.permits, lambda *_, **__: None)
        self.link.open()

    def ask(self, client, theta, rest=None):
        """What the client sends of its rows for this model, and for this rest."""
        self.link.await_peers([client], SLOW)
        came = [self._asked(client, 1, "model", theta, "embedding")]
        if rest is not None:
            given = Rows(rest, torch.ones(len(rest), dtype=torch.bool))
            came.append(self._asked(client, 4, "rest", given, "update"))
        return came

    def _asked(self, client, move, kind, payload, answer):
        self.link.send(Message(Key(0, move), kind, self.name, client, payload))
        key = Key(0, move + 1)
        try:
            return self.link.mailbox(self.name).take_each([client], key, SLOW)[client].payload
        except (AbortedError, KeyError):  # it has gone
            return None

    def close(self):
        self.link.abort("the test is over")
        self.link.close()


def asked_anew(federation, client, theta, rest=None, wait=False):
    """By a hub without a memory, of the client, started again. `wait`: until it ends by itself,
    where it does not answer."""
    hub = Hub(federation, client.silo)
    try:
        federation.start(client, "--resume")
        answer = hub.ask(client, theta, rest)
        if wait and answer == [None]:
            federation.processes[client].wait(SLOW)
        return answer
    finally:
        kill(federation, client)
        hub.close()


def test_another_model_for_the_same_round_gets_other_noise(rehearsal):  # noqa: F811
    federation, client = rehearsal(text_of(RUN, 1)), Client("b", "0")
    run = federation.prepare()
    part = run.fed.parts.value["b"]
    theta = part.initial(run.fed.streams)
    other = tree.map_tensors(lambda a: a + 0.5, theta)
    count = len(asked_anew(federation, client, theta)[0])
    rest = torch.zeros(count, part.shapes.joint)
    sent, update = asked_anew(federation, client, theta, rest)
    again, same = asked_anew(federation, client, theta, rest)
    assert torch.equal(sent, again)  # the same release, to the bit
    assert tree.largest_difference(update, same) == 0
    shifted = asked_anew(federation, client, other)[0]
    assert_independent(*(noise_of(run, client, t, s) for t, s in ((theta, sent), (other, shifted))))
    # local steps, for other embeddings of the other silos: gradients are nothing beside this noise
    step = LR * SHARE * math.sqrt(run.algorithm.local_steps) / count
    unchanged, changed = asked_anew(federation, client, theta, rest + 0.1)
    assert torch.equal(sent, unchanged)
    apart = tree.tensors(tree.add(update, tree.scale(changed, -1)))
    assert float(torch.cat([a.flatten() for a in apart]).std()) > 0.5 * step
    page = msgspec.msgpack.decode((federation.of(client) / "out" / BOOK).read_bytes(), type=Page)
    assert set(page.releases) == {0, 2}  # two models: two releases, however often they were sent
    assert set(page.steps) == {0, 2 * 2}  # of two rests


# Exact all the same


def assert_booked_once(federation):
    """Clients count no more than hubs, who count from what everybody knows."""
    for silo, client in (("a", ONE), ("b", Client("b", "0"))):
        page = msgspec.msgpack.decode(
            (federation.of(client) / "out" / BOOK).read_bytes(), type=Page
        )
        booked, hub = (
            json.loads((federation.of(party) / "out" / "done.json").read_text())["privacy"]
            for party in (client, silo)
        )
        assert booked["releases"] == max(page.releases) > 0
        assert hub["mu"] >= booked["mu"] > 0


@pytest.mark.parametrize("text", [RUN, FROZEN], ids=["trained", "frozen"])
def test_kills_change_nothing(rehearsal, text):  # noqa: F811
    """Also that parties and reference draw alike from the secrets."""
    federation = rehearsal(text_of(text, 12))
    play(
        federation,
        federation.prepare(),
        [(ONE, "before update", "b"), ("a", "after hub-embedding")],
    )
    assert_booked_once(federation)


@pytest.mark.slow
def test_kills_change_nothing_where_silos_visit(rehearsal):  # noqa: F811
    visiting = RUN.replace("[algorithm]\n", '[algorithm]\nname = "vafl"\n', 1)
    federation = rehearsal(text_of(visiting, 12))
    play(
        federation,
        federation.prepare(),
        [(ONE, "before update", "b"), ("b", "after checkpoint", "a")],
    )
    assert_booked_once(federation)


@pytest.mark.parametrize("text", [RUN, pytest.param(FROZEN, marks=pytest.mark.slow)])
def test_rounds_that_are_made_again_are_the_same_releases(rehearsal, text):  # noqa: F811
    """A hub comes back six rounds behind: to the bit, and booked once."""
    federation = rehearsal(text_of(text, 30))
    run, copy = backed_up(federation, "a", 14, 6)
    restored(federation, "a", copy)
    federation.start("a", "--resume")
    ended(federation, run, 14)
    assert_booked_once(federation)


def test_who_is_missing_is_replayed_with_noise(rehearsal):  # noqa: F811
    federation = rehearsal(text_of(RUN, 40), on_missing_client="skip", deadline=5.0)
    begin(federation)
    reach(federation, "a", 5)
    kill(federation, ONE)
    reach(federation, "a", 12)
    federation.start(ONE, "--resume")
    federation.wait(SLOW)
    assert assert_replays(federation).dropped


def test_the_initial_block_is_the_silo_s_own(rehearsal):  # noqa: F811
    """Nobody else can compute it, and heads are common."""
    federation = rehearsal(text_of(FROZEN, 1))
    run = federation.prepare()
    for silo, part in run.fed.parts.value.items():
        own, public = part.initial(run.fed.streams), part.initial_for_all(run.fed.streams)
        assert tree.largest_difference(own.block, public.block) > 0.01
        assert tree.largest_difference(own.head, public.head) == 0
        trained = run.algorithm.blocks(run.fed, run.state)[silo]
        assert tree.largest_difference(trained.block, own.block) == 0  # frozen


# The client's own book

BUDGET = RUN.replace(f"noise = {NOISE}\n", "mu = 2.0\nreleases = 4\n", 1).replace(
    f"gradient_noise = {SHARE}\n", ""
)


def book_of(federation, client):
    return federation.of(client) / "out" / BOOK


def test_a_budget_ends_the_run_for_who_was_restarted_too(rehearsal, capsys):  # noqa: F811
    """By its own book it stops where everyone does."""
    federation = rehearsal(text_of(BUDGET, 500))
    run = begin(federation)
    reach(federation, "a", 2)
    kill(federation, ONE)
    federation.start(ONE, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    done = [federation.of(party) / "out" / "done.json" for party in run.placement.topology.parties]
    summaries = [json.loads(path.read_text()) for path in done]
    assert {summary["rounds"] for summary in summaries} == {run.round}
    assert run.round < 500
    assert max(summary["privacy"]["mu"] for summary in summaries) == pytest.approx(2.0)
    log = (federation.of(ONE) / "out" / "log.jsonl").read_text().splitlines()
    rounds = [entry for entry in map(json.loads, log) if entry["event"] == "round"]
    assert 0 < rounds[0]["mu"] <= rounds[-1]["mu"] <= 2.0 + 1e-9
    assert rounds[-1]["epsilon"] == pytest.approx(summaries[0]["privacy"]["epsilon"], rel=0.5)
    capsys.readouterr()
    assert main(["status", str(federation.of(ONE) / "party.toml")]) == 0
    assert "the most used record of a silo has spent mu 2 of 2 (epsilon" in capsys.readouterr().out
    assert "has spent mu 2 of 2 (epsilon" in federation.last_words(ONE)


def test_a_client_sends_no_more_than_its_book_permits(rehearsal):  # noqa: F811
    """Whatever its hub asks for."""
    federation, client = rehearsal(text_of(BUDGET.replace("releases = 4", "releases = 2"), 1)), ONE
    run = federation.prepare()
    theta = run.fed.parts.value["a"].initial(run.fed.streams)
    sent = 0
    for step in range(9):
        model = tree.map_tensors(lambda a, n=step: a + 0.1 * n, theta)
        if asked_anew(federation, client, model, wait=True) == [None]:
            break
        sent += 1
    assert federation.processes[client].returncode == 2
    assert "by its own book (privacy.msgpack) a record would reach mu" in federation.last_words(
        client
    )
    page = msgspec.msgpack.decode(book_of(federation, client).read_bytes(), type=Page)
    assert 2 <= sent == max(page.releases) < 9


def test_the_book_is_on_disk_before_anything_is_sent(rehearsal):  # noqa: F811
    """Who dies in between has not sent what its book counts: never the other way round."""
    one, client = rehearsal(text_of(RUN, 1)), ONE
    run = one.prepare()
    theta = run.fed.parts.value["a"].initial(run.fed.streams)
    hub = Hub(one, client.silo)
    try:
        one.start(client, crash="before embedding:1")
        hub.link.await_peers([client], SLOW)
        hub.link.send(Message(Key(0, 1), "model", "a", client, theta))
        assert one.processes[client].wait(SLOW) == -9
    finally:
        hub.close()
    page = msgspec.msgpack.decode(book_of(one, client).read_bytes(), type=Page)
    assert set(page.releases) == {0, 1}


def test_without_its_book_everything_counts_as_sent(rehearsal, capsys):  # noqa: F811
    federation = rehearsal(text_of(RUN, 60))
    begin(federation)
    reach(federation, "a", 5)
    kill(federation, ONE)
    before = msgspec.msgpack.decode(book_of(federation, ONE).read_bytes(), type=Page)
    book_of(federation, ONE).write_bytes(book_of(federation, ONE).read_bytes()[:-3])
    files = [str(federation.folder / "run.toml"), str(federation.of(ONE) / "party.toml")]
    assert main(["client", *files, "--resume"]) == 3
    assert "is damaged" in capsys.readouterr().err
    book_of(federation, ONE).unlink()
    federation.start(ONE, "--resume")
    federation.wait(SLOW)
    after = msgspec.msgpack.decode(book_of(federation, ONE).read_bytes(), type=Page)
    assert all(b >= a for b, a in zip(after.releases, before.releases, strict=True))
    audit = (federation.of(ONE) / "out" / "audit.jsonl").read_text()
    assert '"event": "book lost"' in audit


# Without a secret


def without_secret(federation, party):
    path = federation.of(party) / "party.toml"
    path.write_text(path.read_text().replace(f'secret = "{SECRET}"\n', ""))
    return path


@pytest.mark.parametrize(("verb", "party"), [("hub", "a"), ("client", ONE)])
def test_privacy_without_a_secret_is_refused(rehearsal, capsys, verb, party):  # noqa: F811
    federation = rehearsal(text_of(RUN, 1))
    federation.prepare()
    files = [str(federation.folder / "run.toml"), str(without_secret(federation, party))]
    assert main([verb, *files]) == 2
    output = capsys.readouterr().err
    assert "privacy needs party.secret" in output
    assert "fedloom keys secret" in output
    assert not (federation.of(party) / "out").exists()
    assert main(["check", files[0], "--party", files[1]]) != 0
    assert "privacy needs party.secret" in capsys.readouterr().out


def test_keys_secret(tmp_path, capsys):
    path = tmp_path / "own" / "noise.secret"
    assert main(["keys", "secret", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(path.read_text().strip())) == 32
    assert main(["keys", "secret", str(path)]) == 5
    assert "cannot be replaced" in capsys.readouterr().err


@pytest.mark.parametrize("secret", [b"", b"short\n", b"0" * 64, b"\0" * 32])
def test_what_is_no_secret_is_refused(rehearsal, capsys, secret):  # noqa: F811
    federation = rehearsal(text_of(RUN, 1))
    federation.prepare()
    (federation.of("a") / SECRET).write_bytes(secret)
    files = [str(federation.folder / "run.toml"), str(federation.of("a") / "party.toml")]
    assert main(["hub", *files]) == 2
    assert "holds no secret" in capsys.readouterr().err
