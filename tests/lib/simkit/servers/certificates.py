"""A throw-away certificate authority, for tests of TLS and mutual TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.adapters.tls.context import TlsFiles


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM texts."""

    cert: bytes
    key: bytes


class Authority:
    """Signs certificates for localhost and 127.0.0.1."""

    def __init__(self, name: str = "test authority", *, days: float = 1) -> None:
        """Make an authority whose certificates are valid for so many days."""
        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._cert = self._signed(self._name, self._key.public_key(), authority=True)
        self.cert = self._cert.public_bytes(serialization.Encoding.PEM)
        self.key = _pem_of(self._key)

    def issue(self, name: str, *, uris: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> Pair:
        """Return a new certificate, also for these URIs and DNS names, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._signed(_name(name), key.public_key(), authority=False, uris=uris, hosts=hosts)
        return Pair(
            cert.public_bytes(serialization.Encoding.PEM),
            _pem_of(key),
        )

    def files(self, folder: Path, *, uris: tuple[str, ...] = ()) -> TlsFiles:
        """Write a new certificate of a broker, its key and this authority; files are replaced."""
        pair = self.issue("broker", uris=uris)
        found = TlsFiles(
            cert_file=folder / "broker.crt",
            key_file=folder / "broker.key",
            ca_file=folder / "ca.crt",
        )
        for path, text in zip(found.all(), (pair.cert, pair.key, self.cert), strict=True):
            path.write_bytes(text)
        return found

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        authority: bool,
        uris: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            *map(x509.UniformResourceIdentifier, uris),
            *map(x509.DNSName, hosts),
        ]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=self._days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def revocations(
    ca_cert: bytes,
    ca_key: bytes,
    revoked: Iterable[bytes] = (),
    *,
    days: float = 7,
    begins_days: float = -1,
) -> bytes:
    """Return an authority's list with these certificates, for so many days; all in PEM."""
    now = dt.datetime.now(dt.UTC)
    key = serialization.load_pem_private_key(ca_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.load_pem_x509_certificate(ca_cert).subject)
        .last_update(now + dt.timedelta(days=begins_days))
        .next_update(now + dt.timedelta(days=days))
    )
    for one in revoked:
        number = x509.load_pem_x509_certificate(one).serial_number
        row = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
        made = made.add_revoked_certificate(row.build())
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
