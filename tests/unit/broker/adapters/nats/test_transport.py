"""The connection to NATS is tried again, whatever an attempt ended by, with what is wanted then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from broker.adapters.nats.transport import NatsTransport
from broker.codec.nats.stream import MessageBatch
from broker.config import NatsConfig
from headwater.local.embedded import free_port
from simkit.servers.certificates import Authority
from simkit.servers.scripted_nats import ScriptedNats


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


class Quiet:
    """Takes what comes, and that connections end."""

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Take messages."""
        return None

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """Take the end of a connection."""


def run_story(story: Callable[[ScriptedNats, NatsTransport], Awaitable[None]]) -> None:
    """Run a story with a server and a connection to it."""
    crashes: list[BaseException] = []

    async def main() -> None:
        async with ScriptedNats() as server:
            transport = NatsTransport(
                NatsConfig(url=server.url),
                client_name="test",
                sink=Quiet(),
                on_crash=crashes.append,
            )
            await transport.start()
            await story(server, transport)
            await transport.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert crashes == []


def test_a_subscription_that_ends_during_a_reconnect_is_not_on_the_new_connection() -> None:
    """As a member of a queue group it would take messages that nobody here stores."""

    async def story(server: ScriptedNats, transport: NatsTransport) -> None:
        await transport.subscribe({5: "orders.0", 6: "orders.1"}, "group")
        server.falls_silent = True
        server.hang_up()
        await server.until(lambda: server.connects == 2 and len(server.subscriptions) == 2)
        assert not transport.connected
        await transport.unsubscribe([5])
        server.speak()
        await transport.subscribe({7: "orders.2"}, "group")
        assert server.subscriptions == {"6": "orders.1", "7": "orders.2"}
        assert await transport.flush()
        await transport.unsubscribe([6])
        assert server.subscriptions == {"7": "orders.2"}

    run_story(story)


def test_a_subscription_that_ends_before_there_is_a_connection_is_never_made() -> None:
    """Its call of subscribe still waits for the connection, and must not subscribe then."""

    async def story(server: ScriptedNats, transport: NatsTransport) -> None:
        server.silent = True
        server.hang_up()
        await server.until(lambda: server.connects == 2)
        subscribing = asyncio.create_task(transport.subscribe({5: "a", 6: "b"}, "group"))
        await asyncio.sleep(0)
        assert not transport.connected
        await transport.unsubscribe([5])
        server.speak()
        await subscribing
        assert server.subscriptions == {"6": "b"}
        assert "SUB a group 5" not in server.commands

    run_story(story)
