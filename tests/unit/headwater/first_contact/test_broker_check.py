"""Issue 11, item 10: `headwater broker --check` looks at everything that a broker needs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.config import (
    AccessConfig,
    BrokerConfig,
    ClusterConfig,
    FlightConfig,
    HttpConfig,
    LakeConfig,
    LiftbridgeConfig,
    NatsConfig,
    NodeConfig,
    insecure,
)
from broker.runtime.cluster.identity import claim_directory
from headwater.cli.broker_check import check, checked_needs
from headwater.local.cluster_certificates import CertificateFiles, make_certificates
from headwater.local.embedded import free_port
from simkit.servers.certificates import Authority, revocations


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    """Return a configuration with which a broker could start; NATS is switched off."""
    return BrokerConfig(
        node=NodeConfig(data_dir=str(tmp_path / "data" / "broker")),
        nats=NatsConfig(url=""),
        flight=FlightConfig(port=free_port()),
        http=HttpConfig(port=free_port()),
        lake=LakeConfig(uri=str(tmp_path / "lake")),
    )


def _wrong(config: BrokerConfig) -> dict[str, str]:
    found = checked_needs(config, java=False)
    return {one.what: one.error.message for one in found if one.error is not None}


def test_all_is_well_and_nothing_was_made(
    config: BrokerConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each thing has a line; no folder appears."""
    assert check(config, java=False) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("data folder", "Flight port", "HTTP port", "lake"))
    assert list(tmp_path.iterdir()) == []


def test_java_is_looked_at_if_it_is_asked_for(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker needs none; Spark does."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    assert check(config, java=False) == 0
    assert "Java" not in capsys.readouterr().out
    assert check(config, java=True) == 2
    assert "Java" in capsys.readouterr().out


@pytest.fixture
def taken() -> Iterator[int]:
    """Listen on a port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_taken_port_is_named(config: BrokerConfig, taken: int) -> None:
    """The address and the system's reason."""
    found = _wrong(replace(config, flight=FlightConfig(port=taken)))
    assert list(found) == ["Flight port"]
    assert "cannot listen" in found["Flight port"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        ({"flight": FlightConfig(host="0.0.0.0", port=0)}, "flight.tls_cert_file"),
        ({"http": HttpConfig(host="0.0.0.0", port=0)}, "/metrics"),
    ],
)
def test_doors_open_to_strangers_are_refused_as_at_the_start(
    config: BrokerConfig, changed: dict[str, Any], told: str | None
) -> None:
    """Unless it is wanted; then the line says which doors."""
    open_doors = replace(config, **changed)
    assert (told or "") in _wrong(open_doors).get("doors", "")
    assert ("doors" in _wrong(open_doors)) == (told is not None)
    wanted = {one.what: one for one in checked_needs(insecure(open_doors), java=False)}["doors"]
    assert wanted.error is None
    assert (told or "") in wanted.detail


def test_the_files_of_the_access_control_are_looked_at(
    config: BrokerConfig, tmp_path: Path
) -> None:
    """The owner's token is not made by a look, and one that others may read is named."""
    token, keys = tmp_path / "owner.token", tmp_path / "keys.json"
    access = AccessConfig(enabled=True, owner_token_file=str(token))
    assert _wrong(replace(config, access=access)) == {}
    assert not token.exists()
    token.write_text("hw_")
    token.chmod(0o644)
    assert "others" in _wrong(replace(config, access=access))["access"]
    access = replace(access, owner_token_file=str(tmp_path / "none" / "owner.token"))
    assert "cannot make" in _wrong(replace(config, access=access))["access"]
    keys.write_text("{}")
    access = AccessConfig(enabled=True, jwt_keys_file=str(keys), jwt_issuer="i", jwt_audience="a")
    assert str(keys) in _wrong(replace(config, access=access))["access"]
    access = AccessConfig(enabled=True, casbin_model_file=str(keys), casbin_policy_file=str(token))
    assert str(keys) in _wrong(replace(config, access=access))["access"]


def test_the_room_for_message_ids_is_told_and_fits_the_machine(config: BrokerConfig) -> None:
    """A bound that the memory cannot hold bounds nothing."""
    found = {one.what: one.detail for one in checked_needs(config, java=False)}
    assert found["message ids"] == "64 MiB of memory for about 1.2 million of them"
    node = replace(config.node, message_ids_bytes_max=64 * 1024**3)
    assert "memory" in _wrong(replace(config, node=node))["message ids"]


def test_a_folder_that_cannot_be_made_is_named(config: BrokerConfig, tmp_path: Path) -> None:
    """A file stands where the folder would be."""
    (tmp_path / "file").write_text("")
    node = replace(config.node, data_dir=str(tmp_path / "file" / "broker"))
    lake = LakeConfig(uri=str(tmp_path / "file" / "lake"))
    assert set(_wrong(replace(config, node=node, lake=lake))) == {"data folder", "lake"}


def test_a_folder_is_written_to_not_only_looked_at(config: BrokerConfig) -> None:
    """A disk that the kernel has made read-only after an error still permits, and takes nothing."""
    node = replace(config.node, data_dir="/proc/headwater/broker")
    assert _wrong(replace(config, node=node)).keys() == {"data folder"}


def test_a_folder_of_another_broker_is_named(config: BrokerConfig) -> None:
    """Its start would be refused; so is the check, for the name as for the cluster."""
    data = Path(config.node.data_dir)
    data.mkdir(parents=True)
    claim_directory(DiskFiles(data), cluster=config.node.cluster, broker_id=config.node.id)
    assert _wrong(config) == {}
    other = _wrong(replace(config, node=replace(config.node, id="zz")))["data folder"]
    assert f"belongs to broker_id {config.node.id!r}, not 'zz'" in other
    other = _wrong(replace(config, node=replace(config.node, cluster="far")))["data folder"]
    assert "belongs to cluster 'headwater', not 'far'" in other
    (data / "node.json").write_text("{")
    assert "node.json is not readable" in _wrong(config)["data folder"]


def test_certificate_files_are_loaded(config: BrokerConfig, tmp_path: Path) -> None:
    """A missing file, a key of another certificate, an expired certificate: each by its name."""
    made = make_certificates(tmp_path / "tls", cluster="c", brokers=["b", "other"], days=100)
    ours, other = made["b"], made["other"]

    def flight(certificate: Path, key: Path) -> BrokerConfig:
        served = FlightConfig(
            port=config.flight.port, tls_cert_file=str(certificate), tls_key_file=str(key)
        )
        return replace(config, flight=served)

    assert _wrong(flight(ours.cert_file, ours.key_file)) == {}
    assert "certificate and its key" in _wrong(flight(ours.cert_file, other.key_file)).popitem()[1]
    assert "cannot read" in _wrong(flight(tmp_path / "absent", ours.key_file)).popitem()[1]
    past = make_certificates(tmp_path / "old", cluster="c", brokers=["b"], days=0)["b"]
    assert "expired" in _wrong(flight(past.cert_file, past.key_file))["Flight certificates"]


def test_a_list_of_revoked_certificates_has_to_be_in_force(
    config: BrokerConfig, tmp_path: Path
) -> None:
    """The broker would not start with one that has expired."""
    files, lists = make_certificates(tmp_path, cluster="c", brokers=["b"])["b"], tmp_path / "crl"
    served = LiftbridgeConfig(
        port=0,
        tls_cert_file=str(files.cert_file),
        tls_key_file=str(files.key_file),
        tls_client_ca_file=str(files.ca_file),
        tls_client_crl_file=str(lists),
    )
    config = replace(config, liftbridge=served)
    cert, key = files.ca_file.read_bytes(), (tmp_path / "ca.key").read_bytes()
    lists.write_bytes(revocations(cert, key))
    assert _wrong(config) == {}
    lists.write_bytes(revocations(cert, key, days=-0.5))
    assert "not in force" in _wrong(config)["Liftbridge revoked certificates"]


def test_certificates_are_those_with_which_other_brokers_accept_this_one(
    config: BrokerConfig, tmp_path: Path
) -> None:
    """Of another broker, of another cluster, of another authority: each would connect to nobody."""
    made = make_certificates(tmp_path / "tls", cluster="c", brokers=["b", "other"], days=100)
    twin = make_certificates(tmp_path / "twin", cluster="c", brokers=["b"], days=100)["b"]
    far = make_certificates(tmp_path / "far", cluster="far", brokers=["b"], days=100)["b"]

    def cluster(ca: Path, files: CertificateFiles) -> str | None:
        section = ClusterConfig(
            brokers=f"b=127.0.0.1:{free_port()},other=127.0.0.1:{free_port()}", controllers="b",
            tls_ca_file=str(ca), tls_cert_file=str(files.cert_file),
            tls_key_file=str(files.key_file),
        )  # fmt: skip
        node = replace(config.node, id="b", cluster="c")
        found = _wrong(replace(config, node=node, cluster=section))
        assert found.keys() <= {"this broker's name"}
        return found.get("this broker's name")

    ours = made["b"]
    assert cluster(ours.ca_file, ours) is None
    named = cluster(ours.ca_file, made["other"])
    assert named is not None
    assert "names headwater://c/broker/other, not headwater://c/broker/b" in named
    assert "headwater://far/broker/b" in (cluster(far.ca_file, far) or "")
    assert "is not signed by" in (cluster(twin.ca_file, ours) or "")


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        ("", True),  # the host that cluster.brokers names
        ("b.example", True),
        ("b.wild.example", True),
        ("c.b.wild.example", False),
        ("wild.example", False),
        ("10.0.0.1", False),
    ],
)
def test_the_certificate_of_flight_is_for_the_host_that_clients_are_told(
    config: BrokerConfig, tmp_path: Path, told: str, is_right: bool
) -> None:
    """Else clients refuse it, and say no more than that a handshake failed."""
    pair = Authority().issue("b", hosts=("b.example", "*.wild.example"))
    cert_file, key_file = tmp_path / "flight.crt", tmp_path / "flight.key"
    cert_file.write_bytes(pair.cert)
    key_file.write_bytes(pair.key)
    made = make_certificates(tmp_path / "tls", cluster="c", brokers=["b"], days=100)["b"]
    section = ClusterConfig(
        brokers=f"b=127.0.0.1:{free_port()}", advertised_host=told, tls_ca_file=str(made.ca_file),
        tls_cert_file=str(made.cert_file), tls_key_file=str(made.key_file),
    )  # fmt: skip
    node = replace(config.node, id="b", cluster="c")
    served = replace(config.flight, tls_cert_file=str(cert_file), tls_key_file=str(key_file))
    found = _wrong(replace(config, node=node, cluster=section, flight=served))
    assert found.keys() == (set() if is_right else {"Flight's host"})


def test_nats_that_does_not_answer_is_worth_another_try(config: BrokerConfig) -> None:
    """Exit code 3, as for everything that is away; no password in what is printed."""
    away = replace(config, nats=NatsConfig(url=f"nats://me:secret@127.0.0.1:{free_port()}"))
    found = _wrong(away)
    assert "no NATS server answers" in found["NATS"]
    assert "secret" not in found["NATS"]
    assert check(away, java=False) == 3


def test_a_store_that_does_not_answer_is_told(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An S3 endpoint where nobody listens, within seconds."""
    monkeypatch.setenv("HEADWATER_S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    away = replace(config, lake=LakeConfig(uri="s3://bucket/lake"))
    assert list(_wrong(away)) == ["lake"]
