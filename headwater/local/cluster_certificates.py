"""Certificates of a cluster: one authority, and one certificate per broker with the broker's name.

Brokers talk to each other over TLS 1.3. A broker accepts a peer whose certificate is signed by the
cluster's authority and names the peer as ``headwater://CLUSTER/broker/ID``. A certificate that also
names the broker's hosts serves its doors for clients, which trust the same authority. Only the
owner of a key file may read it. The authority's key is needed only to add a broker later, and no
running broker needs it: keep it on another machine.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.errors import InvalidConfigError
from broker.model.ids import is_stream_name
from broker.model.member_uri import member_uri

_AUTHORITY_DAYS: Final = 3650
_BEFORE: Final = dt.timedelta(hours=1)  # because the clocks of other machines may be behind
_HOST_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """The certificate files of one broker."""

    ca_file: Path
    cert_file: Path
    key_file: Path


def files_of(folder: Path, broker: str) -> CertificateFiles:
    """Return the paths of a broker's certificate files, which need not exist."""
    return CertificateFiles(
        ca_file=folder / "ca.crt",
        cert_file=folder / f"{broker}.crt",
        key_file=folder / f"{broker}.key",
    )


def make_certificates(
    folder: Path,
    *,
    cluster: str,
    brokers: Sequence[str],
    hosts: Mapping[str, Sequence[str]] | None = None,
    days: int = 825,
) -> dict[str, CertificateFiles]:
    """Make the missing files of the authority and of each broker; no file is replaced.

    ``hosts`` has, by broker, the DNS names and IP addresses at which clients reach it.

    Raises:
        InvalidConfigError: a name is not valid, a file cannot be written, the existing files are
            incomplete, or an existing certificate does not name a host that is asked for.
    """
    named = {broker: [_host(one) for one in (hosts or {}).get(broker, ())] for broker in brokers}
    for name in (cluster, *brokers):
        if not is_stream_name(name):
            raise InvalidConfigError(
                f"{name!r} is not a name: use 1 to 128 characters of A-Z a-z 0-9 _ -"
            )
        if name == "ca":
            raise InvalidConfigError(
                "no cluster or broker may be named 'ca': the authority's files have that name"
            )
    found = {broker: files_of(folder, broker) for broker in brokers}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _Authority.in_folder(folder, cluster)
        for broker, files in found.items():
            there = [path.exists() for path in (files.cert_file, files.key_file)]
            if any(there) and not all(there):
                raise InvalidConfigError(
                    f"{folder} has only one of {files.cert_file.name} and {files.key_file.name}: "
                    "restore the other file, or remove this one to make both again"
                )
            if not any(there):
                authority.issue(files, member_uri(cluster, broker), broker, named[broker], days)
            elif named[broker]:
                _require_hosts(files.cert_file, named[broker])
    except (OSError, ValueError) as cause:
        raise InvalidConfigError(f"certificates in {folder}: {cause}") from cause
    return found


class _Authority:
    """Signs the brokers' certificates; its files are ``ca.crt`` and ``ca.key``."""

    def __init__(self, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._cert = cert
        self._key = key

    @classmethod
    def in_folder(cls, folder: Path, cluster: str) -> _Authority:
        """Load the folder's authority, or make one."""
        cert_file, key_file = folder / "ca.crt", folder / "ca.key"
        if not cert_file.exists() and not key_file.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            cert = _authority_certificate(key, _authority_name(cluster))
            _write_new(key_file, _key_bytes(key), secret=True)
            _write_new(cert_file, cert.public_bytes(serialization.Encoding.PEM))
            return cls(cert, key)
        cert = x509.load_pem_x509_certificate(cert_file.read_bytes())
        if cert.subject != _name(_authority_name(cluster)):
            raise InvalidConfigError(
                f"{cert_file} is the authority of another cluster ({cert.subject.rfc4514_string()})"
                f", not of {cluster!r}: use another folder, or that cluster's name"
            )
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or (
            loaded.public_key() != cert.public_key()
        ):
            raise InvalidConfigError(f"{key_file} is not the key of {cert_file}")
        return cls(cert, loaded)

    def issue(
        self,
        files: CertificateFiles,
        uri: str,
        name: str,
        hosts: Sequence[x509.GeneralName],
        days: int,
    ) -> None:
        """Write a new key and its certificate. The URI is its first name: a principal's name."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        builder = _builder(name[:64], key, issuer=self._cert.subject, days=days)
        cert = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), *hosts]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        _write_new(files.key_file, _key_bytes(key), secret=True)
        _write_new(files.cert_file, cert.public_bytes(serialization.Encoding.PEM))


def valid_until(path: Path) -> dt.datetime:
    """Return when the first certificate of a PEM file expires.

    Raises:
        InvalidConfigError: the file has no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as cause:
        raise InvalidConfigError(f"{path} has no certificate: {cause}") from cause


def names_host(path: Path, host: str) -> bool:
    """Tell whether the first certificate of a PEM file is for a host; ``*.`` stands for one label.

    Raises:
        InvalidConfigError: the file has no certificate, or the text is no host.
    """
    try:
        found = _hosts_of(path)
    except (OSError, ValueError) as cause:
        raise InvalidConfigError(f"{path} has no certificate: {cause}") from cause
    above = host.partition(".")[2]
    return _host(host) in found or (bool(above) and x509.DNSName(f"*.{above}") in found)


def _host(text: str) -> x509.GeneralName:
    """Return a host as a certificate names it.

    Raises:
        InvalidConfigError: the text is neither an IP address nor a DNS name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        if not _HOST_NAME.match(text):
            raise InvalidConfigError(
                f"{text!r} is not a host: give a DNS name or an IP address, without a port"
            ) from None
        return x509.DNSName(text)


def _hosts_of(cert_file: Path) -> list[x509.GeneralName]:
    certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    try:
        return list(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound:
        return []


def _require_hosts(cert_file: Path, hosts: Sequence[x509.GeneralName]) -> None:
    found = _hosts_of(cert_file)
    missing = [str(one.value) for one in hosts if one not in found]
    if missing:
        raise InvalidConfigError(
            f"{cert_file} does not name the host {', '.join(missing)}, and no file is replaced: "
            "move it and its key away to have both made again"
        )


def _authority_name(cluster: str) -> str:
    return f"Headwater cluster {cluster}"[:64]


def _authority_certificate(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    return (
        _builder(name, key, issuer=_name(name), days=_AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, *, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_new(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Create a new file; only its owner may read a secret file, from its creation on."""
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
