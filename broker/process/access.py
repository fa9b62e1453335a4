"""Makes the access control of a daemon from its configuration, and refuses unguarded doors."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.adapters.access.gate import Gate
from broker.config import AccessConfig, BrokerConfig, unguarded_doors
from broker.core.access.replies import ReplyAddresses
from broker.core.access.static_tokens import TOKEN_BYTES, is_token, make_token
from broker.errors import InvalidConfigError, UnauthenticatedError
from broker.model.secret import Secret
from broker.model.stream import Stream
from broker.model.subjects import replication_subjects
from broker.ports.access import AuditSink, Authenticator
from broker.ports.system import Clock
from broker.runtime.api.access import Access
from broker.runtime.api.identities import OWNER, OwnerToken
from broker.runtime.ingest.nats_partition import TakesAnswers
from broker.runtime.metadata.metadata_log import WaitingMetadata

if TYPE_CHECKING:
    from broker.adapters.access.casbin_policy import CasbinFiles

_FILE_BYTES_MAX: Final = 4096
_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def require_guarded(config: BrokerConfig) -> list[str]:
    """Refuse to listen beyond the loopback without TLS and identity, unless it is wanted.

    Returns a sentence for each door that is open to strangers because it is wanted.

    Raises:
        InvalidConfigError: strangers would reach the records, and ``access.insecure`` is not set.
    """
    told = unguarded_doors(config)
    if told and not config.access.insecure:
        raise InvalidConfigError(
            f"{'; '.join(told)}: whoever reaches the port could read and delete everything. Set "
            "what is missing (docs/security.md), or say access.insecure = true (--insecure) if "
            "only trusted machines reach it"
        )
    return told


def check_files(settings: AccessConfig) -> None:
    """Look at the files that the settings name as a start would; the owner's token is not made.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    if settings.owner_token_file:
        path = Path(settings.owner_token_file)
        if os.path.lexists(path):
            _read_token(path)
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            raise InvalidConfigError(f"cannot make the token file {path}")
    if settings.jwt_keys_file:
        _jwt_tokens(settings)
    read_policy(settings)


def _jwt_tokens(settings: AccessConfig) -> Authenticator:
    # Imported late: most brokers take no JWT, and start sooner without the library.
    from broker.adapters.access.jwt_tokens import JwtTokens  # noqa: PLC0415

    return JwtTokens(
        settings.jwt_keys_file,
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        principal_claim=settings.jwt_principal_claim,
    )


def read_files(settings: AccessConfig) -> list[Authenticator]:
    """Return what the files of the settings accept; the owner's token is made if it is absent.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    found: list[Authenticator] = []
    if settings.owner_token_file:
        found.append(OwnerToken(owner_token(Path(settings.owner_token_file))))
    if settings.jwt_keys_file:
        found.append(_jwt_tokens(settings))
    return found


def read_policy(settings: AccessConfig) -> CasbinFiles | None:
    """Return the policy in the files of the settings; None if they name none: grants count.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    if not settings.casbin_policy_file:
        return None
    # Imported late: most brokers use grants, and start sooner without the library.
    from broker.adapters.access.casbin_policy import CasbinFiles  # noqa: PLC0415

    return CasbinFiles(settings.casbin_model_file, settings.casbin_policy_file)


def make_access(
    config: BrokerConfig,
    authenticators: Sequence[Authenticator],
    metadata: WaitingMetadata,
    clock: Clock,
    policy: CasbinFiles | None = None,
) -> Access:
    """Return who decides for every door of this daemon."""
    settings = config.access
    admins = list(settings.admin_names())
    if settings.owner_token_file:
        admins.append(OWNER)
    return Access(
        metadata,
        clock,
        enabled=settings.enabled,
        namespace=config.node.namespace,
        admins=admins,
        authenticators=authenticators,
        certificates=settings.certificates,
        policy=(lambda: None) if policy is None else policy.policy,
        brokers_subjects=_brokers_subjects(config),
    )


def reply_rule(config: BrokerConfig, metadata: WaitingMetadata) -> TakesAnswers:
    """Return what tells whether publishers on NATS get answers at an address. One thread."""
    addresses = ReplyAddresses(_brokers_subjects(config), guarded=config.access.enabled)

    def takes(stream: Stream, address: bytes) -> bool:
        state = metadata.state
        text = address.decode("utf-8", "replace")
        return addresses.takes(stream, text, streams=state.streams, tenants=state.tenants)

    return takes


def _brokers_subjects(config: BrokerConfig) -> tuple[str, ...]:
    over_nats = config.cluster.replica_transport == "nats"
    return replication_subjects(config.node.cluster) if over_nats else ()


def metrics_guard(
    access: Access, audit: AuditSink | None = None
) -> Callable[[str | None, str | None, str], None]:
    """Return what admits callers to the metrics, by header, certificate and address.

    It raises AccessError for those who may not see them.
    """
    gate = Gate("http", access, audit)

    def admit(authorization: str | None, certificate: str | None, peer: str) -> None:
        caller = gate.caller(authorization=authorization, certificate=certificate, peer=peer)
        gate.admit(caller, "/metrics", {})

    return admit


def no_grants_yet(_authorization: str | None, _certificate: str | None, _peer: str) -> None:
    """Admit nobody to the metrics: the broker has just begun.

    Raises:
        UnauthenticatedError: always.
    """
    raise UnauthenticatedError("this broker is starting, and has no grants yet")


def owner_token(path: Path) -> Secret:
    """Return the token in a file that only this user may read; the file is made if it is absent.

    Raises:
        InvalidConfigError: others may read the file, it is a link, or it holds no token.
    """
    with suppress(FileExistsError):
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
        except FileNotFoundError as cause:
            raise InvalidConfigError(f"the folder of the token file {path} is missing") from cause
        except PermissionError as cause:
            raise InvalidConfigError(f"cannot make the token file {path}") from cause
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(make_token(secrets.token_bytes(TOKEN_BYTES)) + "\n")
            file.flush()
            os.fsync(file.fileno())
    return _read_token(path)


def _read_token(path: Path) -> Secret:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | _NO_LINK), encoding="ascii") as file:
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
