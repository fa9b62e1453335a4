"""Where the broker is: arguments, then the environment, then the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from headwater.client.address import resolve_address


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
