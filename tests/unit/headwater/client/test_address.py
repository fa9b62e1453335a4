"""Where the broker is: arguments, then the environment, then the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from headwater.client.address import resolve_address, resolve_addresses
from headwater.local.cluster_certificates import make_certificates


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        (None, "grpc://127.0.0.1:7410"),
        ("grpc://host:1", "grpc://host:1"),
        ("grpc+tcp://host:1", "grpc://host:1"),
        ("grpc+tls://host:1", "grpc+tls://host:1"),
        ("host:1", "grpc://host:1"),
        ("host", "grpc://host:7410"),
        ("[::1]:7", "grpc://[::1]:7"),
        (" grpc://host:1/ ", "grpc://host:1"),
    ],
)
def test_addresses(url: str | None, resolved: str) -> None:
    """Schemes and ports may be left out."""
    assert resolve_address(url, environment={}).url == resolved


@pytest.mark.parametrize(
    "url", ["http://host:1", "host:x", "host:70000", "grpc://", "grpc://h:1/path", "u@host:1", ":1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """The error shows what an address looks like, or what is wrong."""
    with pytest.raises(InvalidConfigError):
        resolve_address(url, environment={})


def test_the_environment_fills_what_is_not_given(tmp_path: Path) -> None:
    """An argument wins over HEADWATER_SERVER; certificates come from files."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"authority")
    environment = {"HEADWATER_SERVER": "there:2", "HEADWATER_TLS_CA_FILE": str(ca)}
    found = resolve_address(environment=environment)
    assert (found.url, found.ca) == ("grpc+tls://there:2", b"authority")
    assert resolve_address("here:1", environment=environment).host == "here"


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """A missing file, or half of a pair, is a configuration error."""
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidConfigError, match=r"missing\.pem"):
        resolve_address(tls_ca_file=missing, environment={})
    cert = tmp_path / "cert.pem"
    cert.write_bytes(b"x")
    with pytest.raises(InvalidConfigError):
        resolve_address(tls_cert_file=cert, environment={})


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    """Flight would say "empty address list" of it, after lines of its own log."""
    made = make_certificates(tmp_path, cluster="c", brokers=["a", "b"])
    files = {"tls_cert_file": made["a"].cert_file, "tls_key_file": made["a"].key_file}
    assert resolve_address("a:1", environment={}, **files).cert is not None  # type: ignore[arg-type]
    files["tls_key_file"] = made["b"].key_file
    with pytest.raises(InvalidConfigError, match="are not a certificate and its key"):
        resolve_address("a:1", environment={}, **files)  # type: ignore[arg-type]


def test_several_brokers_stand_between_commas() -> None:
    """Each once, in the order given; the text may be given again."""
    found = resolve_addresses("grpc://a:1, b:2,grpc://a:1,", environment={})
    assert found.url == "grpc://a:1,grpc://b:2"
    assert resolve_addresses(found.url, environment={}) == found
    assert resolve_addresses(environment={"HEADWATER_SERVER": "a:1,b:2"}) == found


@pytest.mark.parametrize("url", [",", "a:1,grpc+tls://b:2", "a:1,b:x"])
def test_a_list_that_cannot_be_is_refused(url: str) -> None:
    """No broker, half of them with TLS, one that is no address."""
    with pytest.raises(InvalidConfigError):
        resolve_addresses(url, environment={})


def test_what_a_broker_tells_never_leads_away_from_tls(tmp_path: Path) -> None:
    """A told address is used with our certificates, or not at all."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"authority")
    secure = resolve_addresses("grpc+tls://a:1", tls_ca_file=ca, environment={})
    told = secure.learn("grpc+tls://b:2")
    assert told is not None
    assert (told.url, told.ca) == ("grpc+tls://b:2", b"authority")
    assert secure.learn("grpc://b:2") is None
    assert secure.learn("http://b:2") is None
    assert resolve_addresses("a:1", environment={}).learn("grpc+tls://b:2") is None
