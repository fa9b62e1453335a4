"""What a certificate says of itself: when it expires, and which broker it names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from broker.errors import InvalidConfigError

_US: Final = 1_000_000


def expiry_us(path: Path) -> int:
    """Return when the first certificate of a PEM file to expire does so, in microseconds UTC.

    Raises:
        InvalidConfigError: the file has no certificate.
    """
    return min(int(one.not_valid_after_utc.timestamp()) * _US for one in _read(path))


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


def _read(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as cause:
        raise InvalidConfigError(f"{path} has no certificate: {cause}") from cause


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _signed_by(certificate: x509.Certificate, issuers: Iterable[x509.Certificate]) -> bool:
    for one in issuers:
        try:
            certificate.verify_directly_issued_by(one)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False
