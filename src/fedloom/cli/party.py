"""fedloom hub, fedloom client, fedloom rehearse: real parties, one process each."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.runfile import RunFile
from ..errors import SettingError
from . import common


def add(verbs: common.Verbs) -> None:
    for name, about in (
        ("hub", "a silo's hub, or the server (where the algorithm has one)"),
        ("client", "one client of a silo"),
    ):
        one = common.add_verb(
            verbs,
            name,
            act,
            f"take part in a federation as {about}",
            f"""
            Take part in a federation as {about}.
            RUN.toml is the same at every party; PARTY.toml says who this one is, where its rows and
            keys are, and how to reach the others.

              fedloom {name} run.toml party.toml
              fedloom {name} run.toml party.toml --resume    after a crash, or if in doubt
            """,
        )
        common.add_run_file(one)
        one.add_argument("party", type=Path, metavar="PARTY.toml", help="this party's own file")
        one.add_argument("--resume", action="store_true", help="go on from the checkpoint, if any")
        one.add_argument("--quiet", action="store_true", help="no progress")
    two = common.add_verb(
        verbs,
        "rehearse",
        act_rehearse,
        "all parties of a run as processes on this machine, before going live",
        """
        Start every party of a run as a process of its own on this machine, with throw-away
        certificates and its own rows only, and compare what comes out with the reference engine:
        the model bit for bit, the ledger message by message.

          fedloom rehearse digits.toml --out rehearsal
        """,
    )
    common.add_run_file(two)
    two.add_argument("--out", type=Path, metavar="DIR", help="the folder to write to")
    two.add_argument("--within", type=float, default=600.0, metavar="SECONDS", help="at most")
    two.add_argument("--quiet", action="store_true", help="no progress, no summary")


@common.of_network
def act(chosen: argparse.Namespace) -> None:
    from ..federation.topology import Client
    from ..parties.host import Host
    from ..parties.partyfile import PartyFile

    own = PartyFile.read(chosen.party)
    role = "client" if isinstance(own.me, Client) else "hub"
    if role != chosen.verb:
        raise SettingError(f"{chosen.party} is of a {role}: fedloom {role}")
    say = _nothing if chosen.quiet else _say
    Host(RunFile.read(chosen.file, chosen.set), own, say).go(chosen.resume)


@common.of_network
def act_rehearse(chosen: argparse.Namespace) -> None:
    from ..parties.rehearsal import rehearse

    folder = chosen.out or Path("rehearsals") / chosen.file.stem
    say = _nothing if chosen.quiet else _say
    outcome = rehearse(RunFile.read(chosen.file, chosen.set), folder, chosen.within, say)
    if not chosen.quiet:
        payload, wire = common.human_bytes(outcome.payload), common.human_bytes(outcome.wire)
        print("\nmodel: equal to the reference, bit for bit")
        print("ledger: equal, message by message")
        print(f"sent: {payload} of payload, {wire} with framing; {outcome.seconds:.1f} s")
        print(f"folder: {folder}")


def _nothing(line: str) -> None:
    """Quiet."""


def _say(line: str) -> None:
    print(line, flush=True)
