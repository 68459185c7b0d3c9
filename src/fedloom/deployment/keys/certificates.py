"""Certificates: every organisation has a CA of its own, which signs its hub and its clients.

A party is who its certificate says, never who a message says. The name is a URI in the certificate
(`fedloom://bank` a hub, `fedloom://bank/north` a client, `fedloom://server`); hubs and the server
have a host name as well, made from their party name, by which those who dial them know them,
whatever machine they run on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...core.errors import DataError, SettingError
from ...core.files import SHARED, read_secret, write_bytes
from ...core.topology import SERVER, Client, Party, title

SCHEME = "fedloom://"
SKEW = timedelta(minutes=5)  # clocks may differ by that much


def party_of(text: str) -> Party:
    """A party by its name: `bank`, `bank/north`, `server`."""
    silo, slash, name = text.partition("/")
    if not silo or (slash and (not name or "/" in name)) or (slash and silo == SERVER):
        raise SettingError(f"{text!r} names no party: SILO (its hub), SILO/CLIENT or {SERVER}")
    return Client(silo, name) if slash else silo


def host_name(party: Party) -> str:
    """What a certificate calls the host of a hub or of the server."""
    return f"{hashlib.sha256(str(party).encode()).hexdigest()[:32]}.fedloom"


@dataclass(frozen=True)
class Certificate:
    """A certificate, read."""

    x509: x509.Certificate

    @staticmethod
    def read(path: Path) -> Certificate:
        try:
            return Certificate(x509.load_pem_x509_certificate(path.read_bytes()))
        except (OSError, ValueError) as problem:
            raise DataError(f"{path} is no certificate ({problem})") from None

    @staticmethod
    def parse(pem: bytes) -> Certificate:
        """Of bytes that TLS has accepted."""
        return Certificate(x509.load_pem_x509_certificate(pem))

    @property
    def party(self) -> Party | None:
        """Whose it is; None for a CA, or a certificate of another make."""
        try:
            names = self.x509.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return None
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        if len(uris) != 1 or not uris[0].startswith(SCHEME):
            return None
        words = [unquote(word) for word in uris[0].removeprefix(SCHEME).split("/")]
        return words[0] if len(words) == 1 else Client(words[0], words[1])

    @property
    def name(self) -> str:
        """Whose it is, for people."""
        party = self.party
        if party is not None:
            return title(party)
        names = self.x509.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if names else "a certificate without a name"

    @property
    def fingerprint(self) -> str:
        return self.x509.fingerprint(hashes.SHA256()).hex()

    @property
    def expires(self) -> datetime:
        return self.x509.not_valid_after_utc

    def is_current(self, now: datetime | None = None) -> bool:
        now = now or datetime.now(UTC)
        return self.x509.not_valid_before_utc <= now <= self.expires

    def is_from(self, ca: Certificate) -> bool:
        """Whether this CA signed it."""
        try:
            self.x509.verify_directly_issued_by(ca.x509)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def pem(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Authority:
    """An organisation's CA, with its key: to be kept off the machines of the federation."""

    certificate: Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def new(organisation: str, days: int) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"{organisation} CA")
        made = (
            _begun(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return Authority(Certificate(made), key)

    @staticmethod
    def read(folder: Path) -> Authority:
        path = folder / "ca.key"
        pem = read_secret(path, "the CA's key")
        try:
            key = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError) as problem:
            raise DataError(f"{path} is no private key of a CA ({problem})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DataError(f"{path} is no key that `fedloom keys ca` made")
        return Authority(Certificate.read(folder / "ca.pem"), key)

    def save(self, folder: Path) -> None:
        save(folder, "ca", self.certificate, self.key)

    def issue(self, party: Party, days: int) -> tuple[Certificate, ec.EllipticCurvePrivateKey]:
        """A certificate and a new key for one of the organisation's parties."""
        key = ec.generate_private_key(ec.SECP256R1())
        uri = SCHEME + "/".join(
            quote(word, safe="") for word in (party if isinstance(party, Client) else (party,))
        )
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if not isinstance(party, Client):
            names.append(x509.DNSName(host_name(party)))
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        ca = self.certificate.x509
        made = (
            _begun(_name(str(party)), ca.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Certificate(made), key


def save(
    folder: Path, stem: str, certificate: Certificate, key: ec.EllipticCurvePrivateKey
) -> Path:
    """STEM.pem and STEM.key, which only its owner can read; the certificate's path."""
    hidden = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_bytes(folder / f"{stem}.key", hidden)
    write_bytes(folder / f"{stem}.pem", certificate.pem(), SHARED)
    return folder / f"{stem}.pem"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now - SKEW, now + timedelta(days=days) - SKEW))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
