"""Makes the access control of a daemon from its configuration, and refuses unguarded doors."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from broker.adapters.access.gate import Gate
from broker.config import BrokerConfig, unguarded_doors
from broker.core.access.static_tokens import TOKEN_BYTES, is_token, make_token
from broker.errors import AccessError, InvalidConfigError
from broker.model.secret import Secret
from broker.ports.access import AuditSink, Authenticator
from broker.ports.system import Clock
from broker.runtime.api.access import Access
from broker.runtime.api.identities import OWNER, OwnerToken
from broker.runtime.metadata.metadata_log import WaitingMetadata

_log = structlog.get_logger(__name__)
_FILE_BYTES_MAX: Final = 4096


def require_guarded(config: BrokerConfig) -> None:
    """Refuse to listen beyond the loopback without TLS and identity, unless it is wanted.

    Raises:
        InvalidConfigError: strangers would reach the records, and ``access.insecure`` is not set.
    """
    told = unguarded_doors(config)
    if not told:
        return
    if not config.access.insecure:
        raise InvalidConfigError(
            f"{'; '.join(told)}: whoever reaches the port could read and delete everything. Set "
            "what is missing (docs/security.md), or say access.insecure = true (--insecure) if "
            "only trusted machines reach it"
        )
    for one in told:
        _log.warning("insecure", reason=one, because="access.insecure = true")


def make_access(config: BrokerConfig, metadata: WaitingMetadata, clock: Clock) -> Access:
    """Return who decides for every door of this daemon; reads the files that the settings name.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    settings = config.access
    authenticators: list[Authenticator] = []
    admins = list(settings.admin_names())
    if settings.owner_token_file:
        authenticators.append(OwnerToken(owner_token(Path(settings.owner_token_file))))
        admins.append(OWNER)
    if settings.jwt_keys_file:
        # Imported late: most brokers take no JWT, and start sooner without the library.
        from broker.adapters.access.jwt_tokens import JwtTokens  # noqa: PLC0415

        authenticators.append(
            JwtTokens(
                settings.jwt_keys_file,
                issuer=settings.jwt_issuer,
                audience=settings.jwt_audience,
                principal_claim=settings.jwt_principal_claim,
            )
        )
    return Access(
        metadata,
        clock,
        enabled=settings.enabled,
        namespace=config.node.namespace,
        admins=admins,
        authenticators=authenticators,
        certificates=settings.certificates,
    )


def metrics_guard(
    access: Access, audit: AuditSink | None = None
) -> Callable[[str | None, str], bool]:
    """Return who may see the metrics: by the header Authorization, and the caller's address."""
    gate = Gate("http", access, audit)

    def may_see(authorization: str | None, peer: str) -> bool:
        try:
            gate.admit(gate.caller(authorization=authorization, peer=peer), "/metrics", {})
        except AccessError:
            return False
        return True

    return may_see


def owner_token(path: Path) -> Secret:
    """Return the token in a file that only this user may read; the file is made if it is absent.

    Raises:
        InvalidConfigError: others may read the file, it is a link, or it holds no token.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
        except FileNotFoundError as cause:
            raise InvalidConfigError(f"the folder of the token file {path} is missing") from cause
        except PermissionError as cause:
            raise InvalidConfigError(f"cannot make the token file {path}") from cause
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(make_token(secrets.token_bytes(TOKEN_BYTES)) + "\n")
            file.flush()
            os.fsync(file.fileno())
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | flags), encoding="ascii") as file:
            about = os.fstat(file.fileno())
            text = file.read(_FILE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidConfigError(f"cannot read the token file {path}: {cause}") from cause
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or about.st_uid != os.geteuid():
        raise InvalidConfigError(
            f"others than this broker's user may read {path}: remove it, and a new one is made"
        )
    if not is_token(text):
        raise InvalidConfigError(f"{path} holds no token: remove it, and a new one is made")
    return Secret(text)
