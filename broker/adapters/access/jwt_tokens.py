"""Whom a JWT names: signature, issuer, audience and times are checked by joserfc.

The keys come from a file, a JWKS or a public key in PEM; no request goes to anywhere. The file is
read again when it has changed, so keys are rotated without a restart, and a key that is taken away
ends the open calls of its tokens. Which algorithms are accepted
follows from the kinds of the keys, never from the token: a public key is no shared secret.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet, guess_key

from broker.errors import InvalidConfigError, InvalidRequestError, UnauthenticatedError
from broker.model.access import check_name
from broker.ports.access import Identity

_log = structlog.get_logger(__name__)

_ALGORITHMS: Final = {
    "oct": ("HS256", "HS384", "HS512"),
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("Ed25519", "EdDSA"),
}
_SECRET_BYTES_MIN: Final = 32
_FILE_BYTES_MAX: Final = 1024 * 1024
_LEEWAY_S: Final = 30  # by which clocks may differ
_KNOWN_MAX: Final = 4096
_US: Final = 1_000_000
_EXPIRED: Final = "the token has expired: get a new one"
# What joserfc and json raise for JSON of any shape: a token's header is read before its signature.
_UNREADABLE: Final = (
    JoseError, ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError,
    UnsupportedAlgorithm,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyFile:
    """The keys of one state of the file."""

    stamp: tuple[int, int, int]
    keys: KeySet | Key
    algorithms: tuple[str, ...]
    names: frozenset[str]  # of the keys, see _name


class JwtTokens:
    """Implements ``Authenticator``. Any thread."""

    def __init__(self, path: str, *, issuer: str, audience: str, principal_claim: str) -> None:
        """Read the keys.

        Raises:
            InvalidConfigError: the file cannot be read, or holds no key.
        """
        self._path = Path(path)
        self._issuer = issuer
        self._audience = audience
        self._claim = principal_claim
        self._lock = threading.Lock()
        self._known: dict[bytes, Identity] = {}  # by the digest of the token
        self._refused: tuple[int, ...] | None = None  # the stamp of a file that cannot be used
        self._told_unreadable = False
        try:
            self._keys = self._read()
        except OSError as cause:
            raise InvalidConfigError(
                f"cannot read access.jwt_keys_file {self._path}: {cause.strerror}"
            ) from cause

    def identify(self, bearer: str, now_us: int) -> Identity | None:
        """See ``Authenticator.identify``."""
        if bearer.count(".") != 2:
            return None
        digest = hashlib.sha256(bearer.encode()).digest()
        with self._lock:
            self._follow_file()
            found = self._known.get(digest)
            file = self._keys
        if found is None:
            found = self._verified(bearer, now_us, file)
            with self._lock:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                if self._keys is file:
                    self._known[digest] = found
        if found.expires_us <= now_us:
            raise UnauthenticatedError(_EXPIRED)
        return found

    def trusts(self, key: str) -> bool:
        """See ``Authenticator.trusts``."""
        return key in self._keys.names

    def look(self, *, at_once: bool) -> None:  # noqa: ARG002 - a changed file is read at once
        """See ``Watched.look``: open calls ask only for what is known."""
        with self._lock:
            self._follow_file()

    def _verified(self, bearer: str, now_us: int, file: _KeyFile) -> Identity:
        used: list[Key] = []

        def choose(signature: Any) -> Key:
            used.append(guess_key(file.keys, signature, use="sig"))
            return used[-1]

        rules = jwt.JWTClaimsRegistry(
            now=now_us // _US,
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
        )
        try:
            claims: dict[str, Any] = jwt.decode(
                bearer, choose, algorithms=list(file.algorithms)
            ).claims
            rules.validate(claims)
            principal = check_name(claims.get(self._claim, ""), self._claim)
            expires_us = int(claims["exp"]) * _US
            key = _name(used[-1])
        except ExpiredTokenError as cause:
            raise UnauthenticatedError(_EXPIRED) from cause
        except ClaimError as cause:  # of a token whose signature is right
            raise UnauthenticatedError(
                f"the token is not valid here: its claim {cause.claim!r} is missing or is not "
                "what access.jwt_issuer, access.jwt_audience and the clock ask for"
            ) from cause
        except (*_UNREADABLE, InvalidRequestError) as cause:
            raise UnauthenticatedError(
                "the token is not valid here: it needs a signature by a key of "
                f"access.jwt_keys_file and, as the claim {self._claim!r}, the name of a principal"
            ) from cause
        return Identity(principal=principal, via="jwt", expires_us=expires_us, key=key)

    def _follow_file(self) -> None:
        """Read the file again if it has changed; keys that cannot be read change nothing."""
        try:
            stamp = self._stamp()
            if stamp not in (self._keys.stamp, self._refused):
                self._take(stamp)
        except OSError as error:  # it may pass, so the file is tried again: only the log is spared
            if not self._told_unreadable:
                _log.warning("jwt_keys_kept", path=str(self._path), reason=str(error))
            self._told_unreadable = True
            return
        self._told_unreadable = False

    def _take(self, stamp: tuple[int, int, int]) -> None:
        try:
            self._keys = self._read()
        except InvalidConfigError as error:
            self._refused = stamp  # every call asks: say it once, and parse it once
            _log.warning("jwt_keys_kept", path=str(self._path), reason=str(error))
            return
        self._known.clear()
        _log.info("jwt_keys_read", path=str(self._path))

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> _KeyFile:
        stamp = self._stamp()
        if stamp[1] > _FILE_BYTES_MAX:
            raise InvalidConfigError(
                f"access.jwt_keys_file {self._path} has {stamp[1]} bytes; a file of keys has "
                f"at most {_FILE_BYTES_MAX}"
            )
        text = self._path.read_bytes()
        try:
            keys = _key_set(text)
            listed = keys.keys if isinstance(keys, KeySet) else [keys]
            names = frozenset(map(_name, listed))
        except _UNREADABLE as cause:
            raise InvalidConfigError(
                f"access.jwt_keys_file {self._path} holds no JWKS and no key in PEM"
            ) from cause
        kinds = {one.key_type for one in listed}
        if not kinds:
            raise InvalidConfigError(f"access.jwt_keys_file {self._path} holds no key")
        algorithms = tuple(name for kind in sorted(kinds) for name in _ALGORITHMS[kind])
        return _KeyFile(stamp=stamp, keys=keys, algorithms=algorithms, names=names)


def _name(key: Key) -> str:
    """Return what a key is told by: its id, by which tokens name it, and its digest."""
    return f"{key.kid or ''} {key.thumbprint()}"


def _key_set(text: bytes) -> KeySet | Key:
    """Return the keys of a JWKS; of PEM the key itself, whatever id a token names."""
    if text.lstrip().startswith(b"-----BEGIN"):
        kind = "EC" if b"EC " in text[:64] else None
        for name in (kind,) if kind else ("RSA", "EC", "OKP"):
            try:
                return JWKRegistry.import_key(text, name)
            except (ValueError, TypeError, JoseError):
                continue
        raise ValueError("no key in PEM")
    body = json.loads(text)
    listed = body.get("keys", [body])
    for one in listed:
        if one["kty"] == "oct" and (size := len(one["k"]) * 3 // 4) < _SECRET_BYTES_MIN:
            raise InvalidConfigError(
                f"access.jwt_keys_file has a shared secret of {size} bytes, which can be guessed: "
                f"use one of at least {_SECRET_BYTES_MIN} bytes"
            )
    return KeySet.import_key_set({"keys": listed})
