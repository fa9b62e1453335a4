"""Configuration is checked whole at the edge: unknown keys, types, relations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config import (
    AccessConfig,
    BrokerConfig,
    ClusterConfig,
    FlightConfig,
    LakeConfig,
    NatsConfig,
    NodeConfig,
    arrow_bytes_max,
    load,
)
from broker.errors import InvalidConfigError
from broker.model.secret import Secret


def test_no_file_and_no_environment_give_the_defaults() -> None:
    """One node needs no configuration."""
    assert load(None, {}) == BrokerConfig()


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    """HEADWATER_<SECTION>_<KEY> wins, converted to the key's type."""
    path = tmp_path / "headwater.toml"
    path.write_text('[flight]\nport = 1\nhost = "h"\n[lake]\nsingle_writer = false\n')
    config = load(path, {"HEADWATER_FLIGHT_PORT": "2", "HEADWATER_LAKE_SINGLE_WRITER": "true"})
    assert (config.flight.port, config.flight.host, config.lake.single_writer) == (2, "h", True)


@pytest.mark.parametrize(
    "text",
    [
        "[flight]\nprot = 1\n",
        "[fligth]\nport = 1\n",
        "port = 1\n",
        '[flight]\nport = "1"\n',
        "[flight]\nport = 70000\n",
        '[flight]\ntls_cert_file = "x"\n',
        '[node]\ncluster = "a b"\n',
        "[node]\nmessage_ids_bytes_max = 1048575\n",
        "[flight\n",
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    """A misspelt, mistyped or contradictory file never starts a broker."""
    path = tmp_path / "headwater.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError):
        load(path, {})


@pytest.mark.parametrize(
    "environ", [{"HEADWATER_FLIGHT_PROT": "1"}, {"HEADWATER_FLIGHT_PORT": "x"}]
)
def test_a_wrong_environment_is_refused(environ: dict[str, str]) -> None:
    """A misspelt variable is an error, not a default silently kept."""
    with pytest.raises(InvalidConfigError):
        load(None, environ)


def test_variables_of_other_parts_are_left_alone() -> None:
    """The client's and the store's own variables are not the daemon's."""
    assert load(None, {"HEADWATER_SERVER": "x", "HEADWATER_S3_ENDPOINT": "y"}) == BrokerConfig()
    names = ("HEADWATER_TLS_CA_FILE", "HEADWATER_TLS_CERT_FILE", "HEADWATER_TLS_KEY_FILE")
    assert load(None, dict.fromkeys(names, "a client's")) == BrokerConfig()


@pytest.mark.parametrize(
    ("lake", "flight", "access", "says"),
    [
        ({"reader_ttl_s": 899}, FlightConfig(), True, "900 to 43200"),
        ({"uri": "/lake"}, FlightConfig(), True, "s3://"),
        ({}, FlightConfig(), False, "access.enabled"),
        ({}, FlightConfig(host="0.0.0.0"), True, "flight.tls_cert_file"),
    ],
)
def test_readers_get_credentials_only_where_that_is_safe(
    lake: dict[str, Any], flight: FlightConfig, access: bool, says: str
) -> None:
    """Not everybody, not in plain text, and not for a folder."""
    settings: dict[str, Any] = {"uri": "s3://lake", "reader_role_arn": "arn:aws:iam::1:role/r"}
    with pytest.raises(InvalidConfigError, match=says):
        BrokerConfig(
            lake=LakeConfig(**settings | lake),
            flight=flight,
            access=AccessConfig(enabled=access),
        )


def test_secrets_do_not_show() -> None:
    """A configuration can be logged."""
    config = load(None, {"HEADWATER_NATS_PASSWORD": "hunter2", "HEADWATER_NATS_TOKEN": "t0ps"})
    assert "hunter2" not in repr(config)
    assert "t0ps" not in repr(config)


def _cluster(brokers: str, controllers: str = "", *, raft: str = "own") -> ClusterConfig:
    listed = ",".join(f"{one}=127.0.0.1:7412" for one in brokers.split())
    return ClusterConfig(
        brokers=listed,
        controllers=controllers,
        raft=raft,
        tls_ca_file="a",
        tls_cert_file="b",
        tls_key_file="c",
    )


@pytest.mark.parametrize("brokers", ["b1", "b1 b3 b2", "b1 b2 b3 b4 b5"])
def test_all_brokers_vote_where_they_can(brokers: str) -> None:
    """With 1, 3 or 5 brokers the controllers need not be listed."""
    assert _cluster(brokers).voters() == tuple(sorted(brokers.split()))


def test_some_brokers_vote_where_that_is_written() -> None:
    """The order does not matter; without a cluster no broker votes."""
    assert _cluster("b1 b2 b3 b4", "b4, b1,b2").voters() == ("b1", "b2", "b4")
    assert _cluster("b1 b2", "b2").voters() == ("b2",)
    assert ClusterConfig().voters() == ()


@pytest.mark.parametrize(
    ("brokers", "controllers", "says"),
    [
        ("b1 b2 b3 b4", "", 'cluster.controllers = "b1,b2,b3"'),
        ("b1 b2", "", 'cluster.controllers = "b1"'),
        ("b1 b2 b3", "b1,b2,b9", "b9"),
        ("b1 b2 b3", "b1,b2", "1, 3 or 5"),
        ("b1 b2 b3", "b1,b2,b2", "each once"),
        ("", "b1", "b1"),
    ],
)
def test_controllers_that_cannot_be_are_refused(brokers: str, controllers: str, says: str) -> None:
    """The message says what to write."""
    with pytest.raises(InvalidConfigError, match=says):
        _cluster(brokers, controllers)


@pytest.mark.parametrize(
    ("brokers", "controllers", "raft"),
    [("b1 b2 b3", "", "etcd"), ("b1 b2 b3 b4", "b1,b2,b3", "pysyncobj")],
)
def test_a_raft_that_cannot_be_is_refused(brokers: str, controllers: str, raft: str) -> None:
    """An unknown Raft is refused, and pysyncobj with brokers that do not vote."""
    with pytest.raises(InvalidConfigError, match="pysyncobj"):
        _cluster(brokers, controllers, raft=raft)


def test_a_login_in_the_address_of_nats_leaves_it(tmp_path: Path) -> None:
    """The address is shown in logs, to clients and in files: it never holds a login."""
    path = tmp_path / "headwater.toml"
    path.write_text('[nats]\nurl = "nats://me:hunter2@n1:4222,n2"\n')
    nats = load(path, {}).nats
    assert (nats.url, nats.user, nats.password) == ("nats://n1:4222,n2", "me", Secret("hunter2"))
    token = load(None, {"HEADWATER_NATS_URL": "tls://hunter2@n1"}).nats
    assert (token.url, token.token, token.user) == ("tls://n1", Secret("hunter2"), None)
    assert "hunter2" not in f"{nats} {token}"


def test_an_explicit_login_wins_over_the_address() -> None:
    """As nats-py has it; the address is cleaned all the same."""
    nats = NatsConfig(url="nats://me:old@n1", user="you", password=Secret("new"))
    assert (nats.url, nats.user, nats.password) == ("nats://n1", "you", Secret("new"))


def test_two_logins_in_the_address_are_refused() -> None:
    """Which of them is meant cannot be known; the error shows neither."""
    with pytest.raises(InvalidConfigError, match="different logins") as refused:
        NatsConfig(url="nats://a:hunter2@n1,nats://b:hunter2@n2")
    assert "hunter2" not in str(refused.value)


def test_a_password_of_another_type_is_refused_unseen(tmp_path: Path) -> None:
    """A password of digits without quotes is a number in TOML: the error does not show it."""
    path = tmp_path / "headwater.toml"
    path.write_text("[nats]\npassword = 73317331\n")
    with pytest.raises(InvalidConfigError, match=r"nats\.password must be") as refused:
        load(path, {})
    assert "73317331" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "given", "bound"),
    [
        ("127.0.0.1", 0, 0),
        ("::1", 0, 0),
        ("localhost", 0, 0),
        ("0.0.0.0", 0, 1024**3),
        ("broker.example", 0, 1024**3),
        ("127.0.0.1", 1024**3 // 2, 1024**3 // 2),
    ],
)
def test_arrows_memory_is_bounded_beyond_the_loopback(host: str, given: int, bound: int) -> None:
    """Where strangers can send compressed batches; or where somebody asks for it."""
    node, flight = NodeConfig(arrow_bytes_max=given), FlightConfig(host=host)
    assert arrow_bytes_max(BrokerConfig(node=node, flight=flight)) == bound


def test_a_bound_of_arrow_that_nothing_fits_into_is_refused() -> None:
    """A batch and its copies need room."""
    with pytest.raises(InvalidConfigError, match="arrow_bytes_max"):
        NodeConfig(arrow_bytes_max=1024**2)
