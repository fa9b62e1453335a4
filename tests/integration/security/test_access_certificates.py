"""A client certificate is a proof, at both doors, by the same name; over real TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.adapters.tls.context import server_context
from broker.errors import AccessDeniedError
from broker.model.access import Grant
from broker.runtime.api.access import Access
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from headwater.client import Client
from headwater.client.access import AccessCalls
from simkit.brokers.memory_broker import MemoryBroker
from simkit.servers.certificates import Authority, Pair

WAIT_S = 20


class Doors:
    """A broker with both doors, mutual TLS and access control."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        files = self.authority.files(folder)
        assert files.ca_file is not None
        self.ca = files.ca_file
        self.broker = MemoryBroker()
        self.access = Access(
            self.broker.metadata, self.broker.clock, enabled=True, namespace="default"
        )
        self.flight = FlightService(
            self.broker,
            self.broker.clock,
            FlightServiceConfig(
                port=0,
                tls_cert=files.cert_file.read_bytes(),
                tls_key=files.key_file.read_bytes(),
                tls_client_ca=self.authority.cert,
            ),
            access=self.access,
        )
        self.flight.start()
        self.liftbridge = LiftbridgeService(
            self.broker,
            self.broker.clock,
            LiftbridgeServiceConfig(port=0, tls=server_context(files, protocols=["h2"])),
            access=self.access,
        )
        self.liftbridge.start()

    def write(self, name: str, text: bytes) -> Path:
        """Write a file and return its path."""
        path = self.folder / name
        path.write_bytes(text)
        return path

    def client(self, pair: Pair) -> Client:
        """Return a client with a certificate."""
        return Client(
            f"grpc+tls://localhost:{self.flight.port}",
            tls_ca_file=self.ca,
            tls_cert_file=self.write("client.pem", pair.cert),
            tls_key_file=self.write("client.key", pair.key),
        )

    def stub(self, pair: Pair) -> Any:
        """Return stubs of Liftbridge's API with a certificate."""
        credentials = grpc.ssl_channel_credentials(self.authority.cert, pair.key, pair.cert)
        channel = grpc.secure_channel(f"localhost:{self.liftbridge.port}", credentials)
        return APIStub(channel)  # type: ignore[no-untyped-call]  # generated

    def close(self) -> None:
        """End everything."""
        assert self.flight.close(timeout_ms=10_000)
        assert self.liftbridge.close(timeout_ms=10_000)
        self.broker.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    """Give both doors."""
    doors = Doors(tmp_path)
    yield doors
    doors.close()


def test_a_certificate_names_the_same_principal_at_both_doors(doors: Doors) -> None:
    """What was granted to the name holds there, and nothing else does."""
    pair = doors.authority.issue("ann")
    with doors.client(pair) as ann:
        told = AccessCalls(ann).whoami()
        assert (told.enabled, told.via) == (True, "certificate")
        principal = told.principal
        assert principal
        with pytest.raises(AccessDeniedError):
            ann.create_stream("mine")
        doors.access.grant(
            [
                Grant(principal=principal, kind="stream", pattern="mine*", actions=("create",)),
                Grant(principal=principal, kind="subject", pattern="mine*", actions=("attach",)),
                Grant(principal=principal, kind="subject", pattern="mine", actions=("attach",)),
            ]
        )
        ann.create_stream("mine")
    stub = doors.stub(pair)
    stub.CreateStream(api.CreateStreamRequest(name="mine2", subject="mine"), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as refused:
        stub.CreateStream(api.CreateStreamRequest(name="other", subject="mine"), timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
