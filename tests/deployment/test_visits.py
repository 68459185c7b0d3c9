"""Asynchronous parties as processes: who is free first is next, and what happened replays."""

import msgspec
import pytest

from fedloom.cli.main import main
from tests.deployment.test_processes import RUN, SLOW, assert_replays, kill, rehearsal  # noqa: F401

LIVE = (
    RUN.replace("local_steps = 2\n", 'name = "vafl"\nvisits = 6\nmax_delay = 3\n').replace(
        "150", "60"
    )
    + '\n[engine]\norder = "arrival"\n'
)


def test_a_rehearsal_is_held_against_the_replay_of_its_own_order(tmp_path, capsys):
    path = tmp_path / "live.toml"
    path.write_text(LIVE)
    words = ["--set", "algorithm.rounds=3", "--out", str(tmp_path / "out"), "--within", "120"]
    assert main(["rehearse", str(path), *words]) == 0
    told = capsys.readouterr().out
    assert "model: equal to the reference, bit for bit" in told
    assert "ledger: equal, message by message" in told


def decided(one):
    """The turns of the round that the master was in, as it has them on its disk."""
    files = (one.of("a") / "out").glob("round-*.msgpack")
    saved = [msgspec.msgpack.decode(path.read_bytes()) for path in files]
    ((round, *turns),) = max(saved, key=lambda file: file["move"])["dropped"]["visits"]
    return round, [tuple(visitors) for visitors, _ in turns]


@pytest.mark.slow
def test_the_master_dies_and_tells_what_it_told_before(rehearsal):  # noqa: F811
    """In the first round, and in a later one together with another hub: after it has told a hub of
    the fourth turn, and nobody else; and again before it is so far. Each turn, a hub and two
    clients are told."""
    one = rehearsal(LIVE.replace("max_delay = 3\n", ""))
    run = one.prepare()
    for party in run.placement.topology.parties:
        one.start(party, crash="after told:10" if party == "a" else None)
    found = []
    for others, again in (((), f"after told:{3 * 6 * 9 + 10}"), (("b",), None)):
        assert one.processes["a"].wait(SLOW) == -9
        kill(one, *others)
        found.append(decided(one))
        one.start("a", "--resume", crash="after told:2")
        for party in others:
            one.start(party, "--resume")
        assert one.processes["a"].wait(SLOW) == -9
        assert decided(one) == found[-1]
        one.start("a", "--resume", crash=again)
    one.wait(SLOW)
    record = assert_replays(one)
    assert [len(turns) for turns in record.visits.values()] == [6] * 60
    for (round, turns), at in zip(found, (0, 9), strict=True):
        assert (round, len(turns)) == (at, 4)
        assert [turn.visitors for turn in record.visits[round][:4]] == turns
