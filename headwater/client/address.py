"""Resolves addresses of brokers and TLS certificates: from arguments, else the environment."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from broker.errors import InvalidConfigError
from broker.model.secret import Secret
from headwater.local.owner_token import token_file_for

DEFAULT_URL: Final = "grpc://127.0.0.1:7410"
DEFAULT_PORT: Final = 7410
_TOKEN_BYTES_MAX: Final = 16 * 1024
_SCHEMES: Final = {"grpc": False, "grpc+tcp": False, "grpc+tls": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A broker's Flight address, and the PEM texts for TLS."""

    host: str
    port: int
    tls: bool
    ca: bytes | None = None  # None: the system's authorities
    cert: bytes | None = None  # the client's own, for mutual TLS
    key: bytes | None = None
    token: Secret | None = None  # proves who the client is, at brokers with access control

    @property
    def url(self) -> str:
        """The address as a URL for Flight."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'grpc+tls' if self.tls else 'grpc'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The configured brokers of one cluster, in the order given; at least one."""

    brokers: tuple[Address, ...]

    @property
    def url(self) -> str:
        """All addresses as one text, which :func:`resolve_addresses` accepts."""
        return ",".join(one.url for one in self.brokers)

    def learn(self, url: str) -> Address | None:
        """Return an address that a broker reported, with the same certificates.

        None if the address cannot be used: it is malformed, or it has no TLS and these have.
        """
        first = self.brokers[0]
        try:
            told = _parse(url, tls=first.tls)
        except InvalidConfigError:
            return None
        if told.tls != first.tls:
            return None
        if first.token is not None and not _may_carry_token(told):
            return None
        return replace(told, ca=first.ca, cert=first.cert, key=first.key, token=first.token)


def resolve_addresses(
    url: str | Addresses | None = None,
    *,
    tls_ca_file: str | os.PathLike[str] | None = None,
    tls_cert_file: str | os.PathLike[str] | None = None,
    tls_key_file: str | os.PathLike[str] | None = None,
    token: Secret | str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Addresses:
    """Return the addresses in a list with commas; see :func:`resolve_address`.

    Addresses that are resolved already are returned as they are.

    Raises:
        InvalidConfigError: a text is not an address, some addresses have TLS and some do not, or
            a certificate file cannot be read.
    """
    if isinstance(url, Addresses):
        return url
    env = os.environ if environment is None else environment
    if url is not None and not isinstance(url, str):
        raise InvalidConfigError(
            f"{url!r} is not a text with a broker's address, such as grpc://host:port; several "
            "addresses are one text, with commas between them"
        )
    texts = [one.strip() for one in (url or env.get("HEADWATER_SERVER") or DEFAULT_URL).split(",")]
    found = tuple(
        resolve_address(
            one,
            tls_ca_file=tls_ca_file,
            tls_cert_file=tls_cert_file,
            tls_key_file=tls_key_file,
            token=token,
            environment=env,
        )
        for one in dict.fromkeys(texts)
        if one
    )
    if not found:
        raise InvalidConfigError(f"{url!r} names no broker")
    if len({one.tls for one in found}) > 1:
        raise InvalidConfigError(
            "some addresses use TLS and some do not: give all addresses of a cluster with TLS "
            "(grpc+tls://), or none"
        )
    return Addresses(found)


def resolve_address(
    url: str | None = None,
    *,
    tls_ca_file: str | os.PathLike[str] | None = None,
    tls_cert_file: str | os.PathLike[str] | None = None,
    tls_key_file: str | os.PathLike[str] | None = None,
    token: Secret | str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Address:
    """Return the address of ``url``: ``grpc://host:port``, ``grpc+tls://host:port``, ``host:port``.

    The default of an argument is HEADWATER_SERVER, HEADWATER_TLS_CA_FILE, HEADWATER_TLS_CERT_FILE
    or HEADWATER_TLS_KEY_FILE. With a CA file, ``host:port`` means TLS. The token's default is
    HEADWATER_TOKEN, or the file that HEADWATER_TOKEN_FILE names, or the token of the guarded
    ``headwater up`` in this folder, at its addresses. It goes over TLS or the loopback.

    Raises:
        InvalidConfigError: the text is not an address, a file cannot be read, or the token would be
            sent in plain text.
    """
    env = os.environ if environment is None else environment
    text = (url or env.get("HEADWATER_SERVER") or DEFAULT_URL).strip()
    ca = _pem(tls_ca_file or env.get("HEADWATER_TLS_CA_FILE"))
    cert_file = tls_cert_file or env.get("HEADWATER_TLS_CERT_FILE")
    key_file = tls_key_file or env.get("HEADWATER_TLS_KEY_FILE")
    cert, key = _pem(cert_file), _pem(key_file)
    if (cert is None) != (key is None):
        raise InvalidConfigError("a client certificate needs its key, and a key its certificate")
    if cert_file and key_file:
        _require_pair(cert_file, key_file)
    found = _parse(text, tls=ca is not None)
    secret = Secret.of(token) or _token_of(env, found)
    if secret is not None and not _may_carry_token(found):
        raise InvalidConfigError(
            f"{found.url} has no TLS, so the token would be sent in plain text: use grpc+tls://"
        )
    return replace(found, ca=ca, cert=cert, key=key, token=secret)


def _token_of(env: Mapping[str, str], address: Address) -> Secret | None:
    """Return the token of the environment, else of this folder's server, if there is one."""
    if text := env.get("HEADWATER_TOKEN", "").strip():
        return Secret(text)
    path = env.get("HEADWATER_TOKEN_FILE") or token_file_for(address.url)
    return read_token(path) if path else None


def read_token(path: str | os.PathLike[str]) -> Secret:
    """Return the token in a file; raises InvalidConfigError if there is none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_TOKEN_BYTES_MAX + 1)
    except OSError as cause:
        raise InvalidConfigError(f"cannot read the token file {path}: {cause.strerror}") from cause
    token = text.decode(errors="replace").strip()
    if not token or len(text) > _TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable():
        raise InvalidConfigError(f"the token file {path} holds no token")
    return Secret(token)


def _may_carry_token(address: Address) -> bool:
    """Tell whether nobody on the way can read what is sent to an address."""
    if address.tls or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def _parse(text: str, *, tls: bool) -> Address:
    """Return an address without certificates; ``tls`` applies to a text without a scheme."""
    if "://" not in text:
        text = f"{'grpc+tls' if tls else 'grpc'}://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as cause:
        raise InvalidConfigError(f"{text!r} is not a broker's address: {cause}") from cause
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _SCHEMES or not host or extra:
        raise InvalidConfigError(
            f"{text!r} is not a broker's address; use grpc://host:port, grpc+tls://host:port or "
            f"host:port"
        )
    return Address(
        host=host,
        port=DEFAULT_PORT if port is None else port,
        tls=_SCHEMES[parts.scheme],
    )


def _pem(path: str | os.PathLike[str] | None) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise InvalidConfigError(f"cannot read the certificate file {path}: {cause}") from cause


def _require_pair(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as cause:
        raise InvalidConfigError(
            f"{certificate} and {key} are not a certificate and its key: {cause}"
        ) from cause
