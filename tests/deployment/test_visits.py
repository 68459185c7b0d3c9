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
    output = capsys.readouterr().out
    assert "model: equal to the reference, bit for bit" in output
    assert "ledger: equal, message by message" in output


def decided(federation):
    """The turns of the round that the master was in, as it has them on its disk."""
    files = (federation.of("a") / "out").glob("round-*.msgpack")
    saved = [msgspec.msgpack.decode(path.read_bytes()) for path in files]
    ((round, *turns),) = max(saved, key=lambda file: file["move"])["dropped"]["visits"]
    return round, [tuple(visitors) for visitors, _ in turns]


@pytest.mark.slow
def test_the_master_dies_and_tells_what_it_told_before(rehearsal):  # noqa: F811
    """In the first round, and in a later one together with another hub: after it has told a hub of
    the fourth turn, and nobody else; and again before it is so far. Each turn, a hub and two
    clients are told."""
    federation = rehearsal(LIVE.replace("max_delay = 3\n", ""))
    run = federation.prepare()
    for party in run.placement.topology.parties:
        federation.start(party, crash="after told:10" if party == "a" else None)
    orders = []
    for others, again in (((), f"after told:{3 * 6 * 9 + 10}"), (("b",), None)):
        assert federation.processes["a"].wait(SLOW) == -9
        kill(federation, *others)
        orders.append(decided(federation))
        federation.start("a", "--resume", crash="after told:2")
        for party in others:
            federation.start(party, "--resume")
        assert federation.processes["a"].wait(SLOW) == -9
        assert decided(federation) == orders[-1]
        federation.start("a", "--resume", crash=again)
    federation.wait(SLOW)
    record = assert_replays(federation)
    assert [len(turns) for turns in record.visits.values()] == [6] * 60
    for (round, turns), at in zip(orders, (0, 9), strict=True):
        assert (round, len(turns)) == (at, 4)
        assert [turn.visitors for turn in record.visits[round][:4]] == turns
