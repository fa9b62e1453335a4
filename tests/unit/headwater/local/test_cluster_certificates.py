"""Certificates of a cluster: whole, named, private, and never replaced."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from broker.errors import InvalidConfigError
from headwater.cli.cluster_certs import certs
from headwater.local.cluster_certificates import files_of, make_certificates


def _uris(path: Path) -> list[str]:
    names = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    san = names.get_extension_for_class(x509.SubjectAlternativeName).value
    return san.get_values_for_type(x509.UniformResourceIdentifier)


def test_each_broker_gets_a_certificate_that_names_it(tmp_path: Path) -> None:
    """The name is the URI that the link checks; only the owner can read the keys."""
    made = make_certificates(tmp_path / "new", cluster="prod", brokers=["b1", "b2"])
    assert made == {name: files_of(tmp_path / "new", name) for name in ("b1", "b2")}
    for name, files in made.items():
        assert _uris(files.cert_file) == [f"headwater://prod/broker/{name}"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(files.ca_file)
        context.load_cert_chain(files.cert_file, files.key_file)
        assert stat.S_IMODE(files.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new" / "ca.key").stat().st_mode) == 0o600


def test_a_broker_is_added_by_the_same_authority_and_nothing_is_replaced(tmp_path: Path) -> None:
    """Certificates of running brokers stay valid."""
    make_certificates(tmp_path, cluster="prod", brokers=["b1"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make_certificates(tmp_path, cluster="prod", brokers=["b1", "b2"])
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() - before.keys() == {"b2.crt", "b2.key"}
    assert before.items() <= after.items()


@pytest.mark.parametrize("name", ["", "a.b", "../x", "a b", "ca", "x" * 129])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    """Names become files and NATS subjects."""
    with pytest.raises(InvalidConfigError):
        make_certificates(tmp_path, cluster="prod", brokers=[name])


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key", "b1.key", "b1.crt"])
def test_half_of_a_pair_is_an_error_and_not_made_anew(tmp_path: Path, missing: str) -> None:
    """It was moved or lost; a new one would lock the other brokers out."""
    make_certificates(tmp_path, cluster="prod", brokers=["b1"])
    (tmp_path / missing).unlink()
    with pytest.raises(InvalidConfigError):
        make_certificates(tmp_path, cluster="prod", brokers=["b1", "b2"])


def test_an_authoritys_key_has_to_be_its_own(tmp_path: Path) -> None:
    """A key of another cluster would sign certificates that no broker accepts."""
    make_certificates(tmp_path / "one", cluster="one", brokers=[])
    make_certificates(tmp_path / "two", cluster="two", brokers=[])
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(InvalidConfigError, match="not the key"):
        make_certificates(tmp_path / "one", cluster="one", brokers=["b1"])


def test_a_certificate_names_the_hosts_after_the_broker(tmp_path: Path) -> None:
    """Doors take the first name of a certificate as its holder: that is the broker, not a host."""
    hosts = {"b1": ["b1.example", "10.0.0.1", "::1"]}
    made = make_certificates(tmp_path, cluster="prod", brokers=["b1", "b2"], hosts=hosts)
    certificate = x509.load_pem_x509_certificate(made["b1"].cert_file.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    told = [str(one.value) for one in names]
    assert told == ["headwater://prod/broker/b1", "b1.example", "10.0.0.1", "::1"]
    make_certificates(tmp_path, cluster="prod", brokers=["b1"], hosts=hosts)
    with pytest.raises(InvalidConfigError, match=r"does not name the host b1\.other"):
        make_certificates(tmp_path, cluster="prod", brokers=["b1"], hosts={"b1": ["b1.other"]})


@pytest.mark.parametrize("host", ["", "b1.example:7410", "*.example", "-b1", "b1 b2", "grpc://b1"])
def test_a_host_is_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    """What could not be checked by a client is refused before any file is made."""
    with pytest.raises(InvalidConfigError, match="is not a host"):
        make_certificates(tmp_path / "new", cluster="c", brokers=["b"], hosts={"b": [host]})
    assert not (tmp_path / "new").exists()


def test_the_command_prints_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each broker, for scripts; what to do with them goes to stderr."""
    certs(out=tmp_path, cluster="prod", broker=["b1=b1.example,10.0.0.1", "b2"])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all((tmp_path / f"b{n}.crt").exists() for n in (1, 2))
