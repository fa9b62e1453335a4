"""TLS and mutual TLS, with certificates made for the occasion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import HeadwaterError, InvalidConfigError, UnavailableError
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker
from simkit.servers.certificates import Authority, Pair

WAIT_S = 60


class Files:
    """Certificates as files, as an operator has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority()
        self.ca = self.write("ca.pem", self.authority.cert)

    def write(self, name: str, text: bytes) -> Path:
        """Write a file and return its path."""
        path = self._folder / name
        path.write_bytes(text)
        return path

    def pair(self, name: str, pair: Pair) -> tuple[Path, Path]:
        """Write a certificate and its key."""
        return self.write(f"{name}.pem", pair.cert), self.write(f"{name}.key", pair.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Give a folder with an authority's certificate."""
    return Files(tmp_path)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


def serve(broker: MemoryBroker, files: Files, *, mutual: bool) -> FlightService:
    """Start a service with a certificate; ``mutual`` makes it ask for the client's."""
    pair = files.authority.issue("broker")
    config = FlightServiceConfig(
        port=0,
        tls_cert=pair.cert,
        tls_key=pair.key,
        tls_client_ca=files.authority.cert if mutual else None,
    )
    service = FlightService(broker, broker.clock, config)
    service.start()
    return service


def use(client: Client) -> None:
    """Do everything once that opens a connection."""
    with client:
        client.create_stream("s")
        with client.producer("s") as producer:
            assert producer.send([b"x"]).result(WAIT_S).base_offset == 0
        assert sum(fetched.batch.num_rows for fetched in client.fetch("s")) == 1


def test_tls_serves_who_trusts_the_authority(broker: MemoryBroker, files: Files) -> None:
    """Actions, writes and reads go through TLS."""
    service = serve(broker, files, mutual=False)
    use(Client(f"grpc+tls://localhost:{service.port}", tls_ca_file=files.ca))
    assert service.close()


def test_an_authority_makes_a_plain_address_mean_tls(broker: MemoryBroker, files: Files) -> None:
    """Host and port are enough where the certificate says the rest."""
    service = serve(broker, files, mutual=False)
    use(Client(f"127.0.0.1:{service.port}", tls_ca_file=files.ca))
    assert service.close()


def test_tls_refuses_plain_text_and_strangers(
    broker: MemoryBroker, files: Files, tmp_path: Path
) -> None:
    """A client without TLS, or with another authority, gets only an error."""
    service = serve(broker, files, mutual=False)
    refused = pytest.raises(UnavailableError, match="speaks TLS")
    with Client(f"grpc://127.0.0.1:{service.port}") as plain, refused:
        plain.streams()
    other = tmp_path / "other.pem"
    other.write_bytes(Authority("another").cert)
    url = f"grpc+tls://localhost:{service.port}"
    with Client(url, tls_ca_file=other) as stranger, pytest.raises(UnavailableError):
        stranger.streams()
    assert service.close()


def test_mutual_tls_serves_who_shows_a_certificate(broker: MemoryBroker, files: Files) -> None:
    """A client with a certificate of the authority is served."""
    service = serve(broker, files, mutual=True)
    cert, key = files.pair("client", files.authority.issue("client"))
    url = f"grpc+tls://localhost:{service.port}"
    use(Client(url, tls_ca_file=files.ca, tls_cert_file=cert, tls_key_file=key))
    assert service.close()


def test_mutual_tls_refuses_who_shows_none_or_a_foreign_one(
    broker: MemoryBroker, files: Files
) -> None:
    """Without a certificate that the authority signed there is no call, not even a list."""
    service = serve(broker, files, mutual=True)
    url = f"grpc+tls://localhost:{service.port}"
    with Client(url, tls_ca_file=files.ca) as nobody, pytest.raises(HeadwaterError):
        nobody.streams()
    cert, key = files.pair("foreign", Authority("another").issue("client"))
    foreign = Client(url, tls_ca_file=files.ca, tls_cert_file=cert, tls_key_file=key)
    with foreign, pytest.raises(HeadwaterError):
        foreign.streams()
    assert broker.streams.all() == []
    assert service.close()


def test_a_certificate_that_is_none_is_refused_at_start(broker: MemoryBroker) -> None:
    """The start fails at once with a configuration error."""
    config = FlightServiceConfig(port=0, tls_cert=b"no certificate", tls_key=b"no key")
    with pytest.raises(InvalidConfigError):
        FlightService(broker, broker.clock, config).start()


def test_an_address_in_use_is_refused_at_start(broker: MemoryBroker) -> None:
    """Two services do not share a port."""
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0))
    service.start()
    config = FlightServiceConfig(port=service.port)
    with pytest.raises(InvalidConfigError, match=str(service.port)):
        FlightService(broker, broker.clock, config).start()
    assert service.close()
