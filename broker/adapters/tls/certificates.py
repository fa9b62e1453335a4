"""What a certificate says of itself: when it expires, and which broker it names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from broker.errors import InvalidConfigError

_US: Final = 1_000_000
# What cryptography raises for files of any content: a part may be parsed when it is asked for.
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
)  # fmt: skip
_CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)


def expiry_us(path: Path) -> int:
    """Return when the first certificate of a PEM file to expire does so, in microseconds UTC.

    Raises:
        InvalidConfigError: the file has no certificate.
    """
    return min(_us(one.not_valid_after_utc) for one in _read(path))


def require_member(cert_file: Path, ca_file: Path, uri: str) -> None:
    """Check that a chain begins with the certificate of one broker, signed by the authority.

    Raises:
        InvalidConfigError: other brokers would refuse it.
    """
    ours, *between = _read(cert_file)
    named = _uris(ours)
    if uri not in named:
        raise InvalidConfigError(
            f"{cert_file} names {', '.join(named) or 'no broker'}, not {uri}: other brokers would "
            "refuse it"
        )
    if not _signed_by(ours, [*between, *_read(ca_file)]):
        raise InvalidConfigError(
            f"{cert_file} is not signed by {ca_file}: other brokers would refuse it"
        )


@dataclass(frozen=True, slots=True)
class Revocations:
    """Lists of revoked certificates, as one."""

    begins_us: int  # before this time and from expiry_us on, everybody is refused
    expiry_us: int
    serials: frozenset[int]

    def require_in_force(self, path: Path, now_us: int) -> None:
        """Raise InvalidConfigError if everybody would be refused now."""
        if not self.begins_us <= now_us < self.expiry_us:
            raise InvalidConfigError(
                f"{path} has a list of revoked certificates that is not in force: it has expired, "
                "or is of a later time; everybody would be refused. Get the authority's newest"
            )


def read_revocations(path: Path, ca_file: Path) -> Revocations:
    """Read lists of revoked certificates.

    Raises:
        InvalidConfigError: the file has none, or one that was forged or never expires.
    """
    try:
        return _revocations(path, ca_file)
    except (OSError, *_UNREADABLE) as cause:
        raise InvalidConfigError(f"{path} has no list of revoked certificates: {cause}") from cause


def _revocations(path: Path, ca_file: Path) -> Revocations:
    lists = [x509.load_pem_x509_crl(one) for one in _CRL.findall(path.read_bytes())]
    authorities = defaultdict(list)  # an authority with a new key keeps its name
    for authority in _read(ca_file):
        authorities[authority.subject].append(authority.public_key())
    known = [one for one in lists if one.issuer in authorities]
    if not known:
        raise InvalidConfigError(f"{path} has no list of an authority of {ca_file}")
    for one in known:
        if not any(one.is_signature_valid(key) for key in authorities[one.issuer]):  # type: ignore[arg-type]
            raise InvalidConfigError(f"{path} has a list that its authority did not sign")
    ends = [one.next_update_utc for one in lists]
    if None in ends:
        raise InvalidConfigError(f"{path} has a list that does not say when the next one comes")
    return Revocations(
        begins_us=max(_us(one.last_update_utc) for one in lists),
        expiry_us=min(_us(one) for one in ends if one is not None),
        serials=frozenset(revoked.serial_number for one in lists for revoked in one),
    )


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * _US


def _read(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, *_UNREADABLE) as cause:
        raise InvalidConfigError(f"{path} has no certificate: {cause}") from cause


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _signed_by(certificate: x509.Certificate, issuers: Iterable[x509.Certificate]) -> bool:
    for one in issuers:
        try:
            certificate.verify_directly_issued_by(one)
        except (*_UNREADABLE, InvalidSignature):
            continue
        return True
    return False
