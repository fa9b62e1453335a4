"""How a client identifies itself to NATS: the settings of the broker's section ``nats``."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from broker.errors import InvalidConfigError
from broker.model.secret import Secret


def without_login(urls: str) -> str:
    """Return the addresses of NATS servers, with commas, without user and password."""
    shown = []
    for url in filter(None, urls.split(",")):
        scheme, separator, rest = url.strip().rpartition("://")
        shown.append(f"{scheme}{separator}{rest.rpartition('@')[2]}")
    return ",".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLogin:
    """User, token or key, and TLS. Files are PEM, except a creds file of ``nsc``.

    ``password`` and ``token`` may be given as text; they are kept as :class:`Secret`.
    """

    user: str | None = None
    password: Secret | str | None = None
    token: Secret | str | None = None
    creds_file: str | None = None
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "password", Secret.of(self.password))
        object.__setattr__(self, "token", Secret.of(self.token))
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise InvalidConfigError(
                "give the NATS client certificate and its key together (--nats-tls-cert-file and "
                "--nats-tls-key-file)"
            )
        if self.password is not None and self.user is None:
            raise InvalidConfigError("a NATS password needs a user (--nats-user)")

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``nats.connect``.

        Raises:
            InvalidConfigError: a file cannot be read or is not a certificate or key.
        """
        named = {
            "user": self.user,
            "password": _revealed(self.password),
            "token": _revealed(self.token),
            "user_credentials": self._checked(self.creds_file),
            "nkeys_seed": self._checked(self.nkey_seed_file),
            "tls": self._tls(),
        }
        return {name: value for name, value in named.items() if value is not None}

    def _tls(self) -> ssl.SSLContext | None:
        if self.tls_ca_file is None and self.tls_cert_file is None:
            return None
        self._checked(self.tls_ca_file)
        self._checked(self.tls_cert_file)
        self._checked(self.tls_key_file)
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            if self.tls_cert_file is not None:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (ssl.SSLError, OSError) as cause:
            files = [self.tls_ca_file, self.tls_cert_file, self.tls_key_file]
            named = ", ".join(one for one in files if one)
            raise InvalidConfigError(
                f"not usable as certificates for NATS ({named}): {cause}"
            ) from cause
        return context

    @staticmethod
    def _checked(path: str | None) -> str | None:
        if path is not None:
            try:
                with open(path, "rb"):  # noqa: PTH123  # only to see that it can be read
                    pass
            except OSError as cause:
                raise InvalidConfigError(f"cannot read {path}: {cause.strerror}") from cause
        return path


def _revealed(value: Secret | str | None) -> str | None:
    return value.reveal() if isinstance(value, Secret) else value
