"""The connection to NATS is tried again, whatever an attempt ended by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from broker.adapters.nats.transport import NatsTransport
from broker.codec.nats.stream import MessageBatch
from broker.config import NatsConfig
from headwater.local.embedded import free_port
from simkit.servers.certificates import Authority


class Sink:
    """Takes nothing: no connection is ever made."""

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Not called."""
        raise AssertionError(batches)

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """Not called."""
        raise AssertionError(slow_consumer)


async def told(transport: NatsTransport, holds: Callable[[str], bool]) -> None:
    """Wait until the last attempt ended by such an error."""
    while not holds(str(transport.last_error)):  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)


def test_a_file_that_is_away_for_a_while_ends_no_transport(tmp_path: Path) -> None:
    """Certificates are replaced while brokers run; the next attempt reads the new one."""
    ca_file = tmp_path / "ca.crt"
    content = Authority().cert
    ca_file.write_bytes(content)
    crashes: list[BaseException] = []

    async def story() -> None:
        transport = NatsTransport(
            NatsConfig(
                url=f"tls://127.0.0.1:{free_port()}",
                tls_ca_file=str(ca_file),
                connect_timeout_ms=100,
            ),
            client_name="test",
            sink=Sink(),
            on_crash=crashes.append,
        )
        await transport.start(must_connect=False)
        ca_file.unlink()
        await told(transport, lambda error: "TLS files" in error)
        ca_file.write_bytes(content)
        await told(transport, lambda error: "TLS files" not in error)
        await transport.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert crashes == []
