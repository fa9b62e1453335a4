"""What a daemon does about access at its start: the owner's token, and doors without a guard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config import (
    AccessConfig,
    BrokerConfig,
    ClusterConfig,
    FlightConfig,
    HttpConfig,
    LiftbridgeConfig,
    NatsConfig,
    NodeConfig,
    insecure,
    unguarded_doors,
)
from broker.core.access.static_tokens import is_token
from broker.errors import AccessDeniedError, InvalidConfigError, UnauthenticatedError
from broker.model.access import CLUSTER, Caller, Grant, Resource
from broker.model.ids import BrokerId
from broker.process.access import (
    make_access,
    metrics_guard,
    owner_token,
    read_files,
    require_guarded,
)
from broker.runtime.api.identities import OWNER
from simkit.brokers.memory_broker import FakeClock
from simkit.memory_metadata import MemoryMetadata

TLS: dict[str, Any] = {"tls_cert_file": "c", "tls_key_file": "k"}
FAR = "10.0.0.1"
ASKS = AccessConfig(enabled=True)


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (BrokerConfig(), []),
        (BrokerConfig(flight=FlightConfig(host="::1")), []),
        (BrokerConfig(flight=FlightConfig(host=FAR)), ["no TLS", "asks nobody"]),
        (BrokerConfig(flight=FlightConfig(host=FAR, **TLS)), ["asks nobody"]),
        (BrokerConfig(flight=FlightConfig(host=FAR, **TLS, tls_client_ca_file="a")), []),
        (BrokerConfig(flight=FlightConfig(host=FAR), access=ASKS), ["no TLS"]),
        (BrokerConfig(flight=FlightConfig(host=FAR, **TLS), access=ASKS), []),
        (BrokerConfig(liftbridge=LiftbridgeConfig(host=FAR)), []),
        (
            BrokerConfig(liftbridge=LiftbridgeConfig(enabled=True, host=FAR)),
            ["no TLS", "asks nobody"],
        ),
        (BrokerConfig(http=HttpConfig(host="0.0.0.0")), ["/metrics"]),
        (BrokerConfig(http=HttpConfig(host=FAR), access=ASKS), ["takes tokens without TLS"]),
        (BrokerConfig(http=HttpConfig(host=FAR, **TLS), access=ASKS), []),
    ],
)
def test_a_door_beyond_the_loopback_needs_tls_and_identity(
    config: BrokerConfig, missing: list[str]
) -> None:
    """Or the word: without it the daemon does not start, and says what is missing."""
    told = unguarded_doors(config)
    assert len(told) == len(missing)
    assert all(part in one for part, one in zip(missing, told, strict=True))
    if missing:
        with pytest.raises(InvalidConfigError, match=r"--insecure") as refused:
            require_guarded(config)
        assert all(one in refused.value.message for one in told)
    require_guarded(insecure(config))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"enabled": True, "jwt_keys_file": "k"}, "jwt_issuer"),
        ({"admins": "ann"}, "no effect"),
        ({"owner_token_file": "t"}, "no effect"),
        ({"enabled": True, "admins": "ann, b\nb"}, "access.admins"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], told: str) -> None:
    """A grant that has no effect is worse than none: somebody relies on it."""
    with pytest.raises(InvalidConfigError, match=told):
        AccessConfig(**settings)


def test_the_owners_token_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    """The next start reads the same token."""
    path = tmp_path / "owner.token"
    made = owner_token(path)
    assert is_token(made.reveal())
    assert path.stat().st_mode & 0o777 == 0o600
    assert owner_token(path) == made


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """So is a link, which somebody else may have laid, and a file without a token."""
    path = tmp_path / "owner.token"
    owner_token(path)
    path.chmod(0o640)
    with pytest.raises(InvalidConfigError, match="may read"):
        owner_token(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(InvalidConfigError, match="cannot read"):
        owner_token(link)
    path.write_text("hello\n")
    with pytest.raises(InvalidConfigError, match="holds no token"):
        owner_token(path)
    with pytest.raises(InvalidConfigError, match="folder"):
        owner_token(tmp_path / "none" / "owner.token")


def test_owner_and_administrators_of_the_configuration_may_everything(tmp_path: Path) -> None:
    """By the file's token, and by a certificate's name; a stranger by nothing."""
    path = tmp_path / "owner.token"
    settings = AccessConfig(enabled=True, owner_token_file=str(path), admins="root, cn=ops")
    config = replace(BrokerConfig(), access=settings)
    access = make_access(config, read_files(settings), MemoryMetadata(BrokerId("a")), FakeClock())
    cluster, token = Resource("cluster", CLUSTER), path.read_text().strip()
    owner = access.identify(bearer=token, certificate="x", peer="")
    assert (owner.principal, owner.via) == (OWNER, "owner")
    access.require(owner, "admin", cluster)
    ops = access.identify(bearer=None, certificate="cn=ops", peer="")
    access.require(ops, "elect", access.stream("s"))
    stranger = access.identify(bearer=None, certificate="stranger", peer="")
    with pytest.raises(AccessDeniedError):
        access.require(stranger, "describe", cluster)
    for impossible in ("a\nb", OWNER, "*"):
        with pytest.raises(UnauthenticatedError):
            access.identify(bearer=None, certificate=impossible, peer="")
    named = access.identify(bearer=None, certificate="owner", peer="")
    with pytest.raises(AccessDeniedError):  # the word alone is nobody's right
        access.require(named, "admin", cluster)
    off = replace(config, access=replace(settings, certificates=False))
    blind = make_access(off, [], MemoryMetadata(BrokerId("a")), FakeClock())
    assert not blind.identify(bearer=None, certificate="root", peer="").principal
    admit = metrics_guard(access)
    admit(f"Bearer {token}", None, "here")
    admit(f"bearer  {token} ", None, "here")
    admit(None, "root", "here")
    for unproved in (None, f"Basic {token}"):
        with pytest.raises(UnauthenticatedError):
            admit(unproved, None, "here")


def test_brokers_that_replicate_over_nats_keep_their_subjects() -> None:
    """Where they do not, the subjects are like any other."""
    for transport, refused in (("nats", True), ("peer", False)):
        config = BrokerConfig(
            node=NodeConfig(cluster="prod"),
            nats=NatsConfig(url="nats://127.0.0.1:4222"),
            cluster=ClusterConfig(replica_transport=transport),
            access=ASKS,
        )
        access = make_access(config, [], MemoryMetadata(BrokerId("a")), FakeClock())
        grant = Grant(principal="ann", kind="subject", pattern=">", actions=("attach",))
        access.grant([grant])
        ann, subject = Caller(principal="ann"), Resource("subject", "prod.s.0.replicate")
        assert access.allows(ann, "attach", subject) is not refused
