"""fedloom align, hub, client, status and rehearse: real parties, one process each."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..config.runfile import RunFile
from ..core.errors import SettingError
from . import common

SILENT = 5.0  # seconds: a party writes its status every second


def add(verbs: common.Verbs) -> None:
    for name, about in (
        ("hub", "a silo's hub, or the server (where the algorithm has one)"),
        ("client", "one client of a silo"),
    ):
        verb = common.add_verb(
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
        common.add_run_file(verb)
        verb.add_argument("party", type=Path, metavar="PARTY.toml", help="this party's own file")
        verb.add_argument("--resume", action="store_true", help="go on from the checkpoint, if any")
        verb.add_argument("--quiet", action="store_true", help="no progress")
    rehearse = common.add_verb(
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
    common.add_run_file(rehearse)
    rehearse.add_argument("--out", type=Path, metavar="DIR", help="the folder to write to")
    rehearse.add_argument("--within", type=float, default=600.0, metavar="SECONDS", help="at most")
    rehearse.add_argument("--quiet", action="store_true", help="no progress, no summary")

    align = common.add_verb(
        verbs,
        "align",
        act_align,
        "agree with the other organisations on rows, before a federation",
        """
        Every party runs this once, before `hub` and `client`: ids are matched by keyed hashes,
        columns are prepared, and each party gets the agreement and its own rows.

          fedloom align run.toml party.toml
        """,
    )
    common.add_run_file(align)
    align.add_argument("party", type=Path, metavar="PARTY.toml", help="this party's own file")
    align.add_argument("--quiet", action="store_true", help="nothing but errors")
    status = common.add_verb(
        verbs,
        "status",
        act_status,
        "how a party of a federation stands: round, who is there, who is awaited",
        """
        How the party of PARTY.toml stands, on its own machine: the round it is in, who is
        connected, whom it waits for, its rate and the bytes on each link.

          fedloom status party.toml
        """,
    )
    status.add_argument("party", type=Path, metavar="PARTY.toml", help="the party's own file")
    common.add_json(status)


@common.of_network
def act_align(chosen: argparse.Namespace) -> None:
    from ..core.files import private_folder
    from ..deployment.agreement.align import Alignment
    from ..deployment.log import Log
    from ..deployment.party_file import PartyFile

    own = PartyFile.read(chosen.party)
    folder = Path(own.party.folder)
    private_folder(folder)
    log = Log(folder, own.me, _nothing if chosen.quiet else _say)
    made = Alignment(RunFile.read(chosen.file, chosen.set), own, log).go()
    if not chosen.quiet:
        print(f"{made.size} common rows for training")
        print(f"written: {own.party.agreement}, {own.party.rows}")


@common.of_network
def act_status(chosen: argparse.Namespace) -> None:
    from ..deployment.party.status import read_status
    from ..deployment.party_file import PartyFile
    from ..privacy.spending import in_words

    now = read_status(Path(PartyFile.read(chosen.party).party.folder))
    if chosen.json:
        common.print_json(now)
        return
    age = time.time() - now["time"]
    state = "done" if now["over"] else "stopped" if now["stopped"] else "running"
    if state == "running" and age > SILENT:
        state = f"not heard of for {age:.0f} s"
    rate = "" if now["rate"] is None else f", {now['rate']:.2f} rounds a second"
    print(f"{now['party']}: {state}, round {now['round']} of {now['rounds']}{rate}")
    if now.get("privacy") is not None:
        print(in_words(now["privacy"]))
    for word in ("stopped", "awaited", "absent"):
        if now[word]:
            names = now[word] if isinstance(now[word], str) else ", ".join(now[word])
            print(f"{word}: {names}")
    rows = [
        (
            peer,
            "yes" if peer in now["present"] else "no",
            common.human_bytes(counts.get("on the wire", 0)),
            common.human_bytes(counts.get("received", 0)),
            counts.get("refused", 0),
        )
        for peer, counts in now["links"].items()
    ]
    common.print_table(("peer", "connected", "sent", "received", "refused"), rows)


@common.of_network
def act(chosen: argparse.Namespace) -> None:
    from ..core.topology import Client
    from ..deployment.party.host import Host
    from ..deployment.party_file import PartyFile

    own = PartyFile.read(chosen.party)
    role = "client" if isinstance(own.me, Client) else "hub"
    if role != chosen.verb:
        raise SettingError(f"{chosen.party} is of a {role}: fedloom {role}")
    say = _nothing if chosen.quiet else _say
    Host(RunFile.read(chosen.file, chosen.set), own, say).go(chosen.resume)


@common.of_network
def act_rehearse(chosen: argparse.Namespace) -> None:
    from ..deployment.rehearsal import rehearse

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
