"""fedloom keys: an organisation's CA, its parties' certificates, allow-lists."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import DataError, ExistsError, SettingError
from . import common

if TYPE_CHECKING:
    from ..deployment.keys.certificates import Authority

SOON = 30  # days


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "keys",
        act,
        "an organisation's CA, its parties' certificates, allow-lists",
        """
        Each organisation of a federation makes a CA, and with it certificates for its hub and its
        clients. Every party gets its own .pem and .key; hubs list whose certificates they let in.

          fedloom keys ca bank --at keys/bank             a CA: ca.pem to give away, ca.key to hide
          fedloom keys issue bank bank/north --at keys/bank        for a hub and a client
          fedloom keys allow keys/allow.toml keys/bank/*.pem       let them in
          fedloom keys show keys/bank/*.pem               whose, until when
          fedloom keys rotate bank/north --at keys/bank   a new one in place of the old
          fedloom keys revoke keys/allow.toml bank/north  no more; works while hubs are running
          fedloom keys secret north/noise.secret          what a party's noise is drawn from
        """,
    )
    what = verb.add_subparsers(dest="what", metavar="WHAT", required=True)
    ca = _sub(what, "ca", "make a CA", days=3650)
    ca.add_argument("name", help="the organisation's, as in the run file: its silo, or server")
    for name, help in (("issue", "certificates for parties"), ("rotate", "in place of the old")):
        made = _sub(what, name, help, days=365)
        made.add_argument("parties", nargs="+", metavar="PARTY", help="SILO, SILO/CLIENT, server")
    show = what.add_parser("show", help="whose certificates, and until when")
    show.add_argument("files", nargs="+", type=Path, metavar="FILE.pem")
    common.add_json(show)
    allow = what.add_parser("allow", help="let certificates in")
    allow.add_argument("list", type=Path, metavar="ALLOW.toml")
    allow.add_argument("files", nargs="+", type=Path, metavar="FILE.pem")
    secret = what.add_parser("secret", help="what a party's noise is drawn from (party.secret)")
    secret.add_argument("file", type=Path, metavar="FILE")
    revoke = what.add_parser("revoke", help="let parties in no more")
    revoke.add_argument("list", type=Path, metavar="ALLOW.toml")
    revoke.add_argument("parties", nargs="+", metavar="PARTY")


def _sub(what: common.Verbs, name: str, help: str, days: int) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = what.add_parser(name, help=help)
    verb.add_argument("--at", type=Path, required=True, metavar="DIR", help="the CA's folder")
    verb.add_argument("--days", type=int, default=days, help=f"valid so long (default {days})")
    return verb


@common.of_network
def act(chosen: argparse.Namespace) -> None:
    {
        "ca": _ca,
        "issue": _issue,
        "rotate": _issue,
        "show": _show,
        "allow": _allow,
        "revoke": _revoke,
        "secret": _secret,
    }[chosen.what](chosen)


def _ca(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.certificates import Authority

    if (chosen.at / "ca.key").exists():
        raise ExistsError(f"{chosen.at} already holds a CA: name another folder")
    Authority.new(chosen.name, chosen.days).save(chosen.at)
    print(chosen.at / "ca.pem")


def _issue(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.certificates import Authority, party_of, save

    authority = Authority.read(chosen.at)
    for text in chosen.parties:
        party, stem = party_of(text), text.replace("/", "-")
        there = (chosen.at / f"{stem}.pem").exists()
        if there and chosen.what == "issue":
            raise ExistsError(f"{chosen.at / stem}.pem already exists: use rotate")
        if not there and chosen.what == "rotate":
            raise DataError(f"there is no {chosen.at / stem}.pem to replace: use issue")
        _own(authority, text)
        print(save(chosen.at, stem, *authority.issue(party, chosen.days)))


def _own(authority: Authority, text: str) -> None:
    """A CA signs its own organisation's parties only: others would not be accepted."""
    organisation = authority.certificate.name.removesuffix(" CA")
    if text.partition("/")[0] != organisation:
        raise SettingError(f"{text} is not of {organisation}, whose CA this is")


def _show(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.certificates import Certificate

    rows = []
    for path in chosen.files:
        certificate = Certificate.read(path)
        days = (certificate.expires - datetime.now(UTC)).days
        state = "expired" if days < 0 else "expires soon" if days < SOON else "valid"
        until = f"{certificate.expires:%Y-%m-%d}"
        rows.append((path.name, certificate.name, until, days, state, certificate))
    if chosen.json:
        keys = ("file", "of", "until", "days", "state")
        common.print_json(
            [{**dict(zip(keys, row, strict=False)), "sha256": row[-1].fingerprint} for row in rows]
        )
        return
    shortened = [(*row[:-1], row[-1].fingerprint[:16]) for row in rows]
    common.print_table(("file", "of", "until", "days", "", "sha256"), shortened)


def _allow(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.allow_list import read_list, write_list
    from ..deployment.keys.certificates import Certificate

    allowed = read_list(chosen.list)
    for path in chosen.files:
        certificate = Certificate.read(path)
        if certificate.party is None:
            continue  # a CA's
        prints = allowed.setdefault(str(certificate.party), [])
        if certificate.fingerprint not in prints:
            prints.append(certificate.fingerprint)
        print(f"{certificate.name}: {certificate.fingerprint[:16]}")
    write_list(chosen.list, allowed)


def _revoke(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.allow_list import read_list, write_list

    allowed = read_list(chosen.list)
    for party in chosen.parties:
        if allowed.pop(party, None) is None:
            raise DataError(f"{chosen.list} does not list {party}")
    write_list(chosen.list, allowed)


def _secret(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.secret import new_secret

    new_secret(chosen.file)
    print(chosen.file)
