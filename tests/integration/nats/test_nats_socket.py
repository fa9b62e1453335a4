"""The socket under the NATS connection: bounded, with a clear end, strict when TLS begins."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlparse

import pytest

from broker.adapters.nats.socket import READ_BYTES, NatsSocket
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(talk: Talk) -> tuple[NatsSocket, asyncio.Server]:
    """Return a socket connected to a server that holds this talk."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = NatsSocket()
    await client.connect(urlparse(f"nats://127.0.0.1:{port}"), 0, 60)
    return client, server


async def ended(client: NatsSocket, server: asyncio.Server) -> None:
    """Close both sides."""
    client.abort()
    await client.wait_closed()
    server.close()
    await server.wait_closed()


def test_what_nobody_reads_is_bounded_and_none_of_it_lost() -> None:
    """A flood fills two or three megabytes here and waits in the server for the rest."""
    flood = bytes(range(256)) * 4096 * 40

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(flood)
        await writer.drain()
        writer.close()

    async def story() -> None:
        client, server = await connected(talk)
        while client.unread_bytes <= 2 * READ_BYTES:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert client.unread_bytes <= 3 * READ_BYTES
        got = bytearray()
        while data := await client.read():
            got += data
        assert bytes(got) == flood
        assert client.at_eof()
        await ended(client, server)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_plaintext_behind_the_greeting_does_not_enter_the_encrypted_talk(tmp_path: Path) -> None:
    """Commands that someone on the way put behind INFO are dropped when TLS begins."""
    authority = Authority()
    pair = authority.issue("server")
    (tmp_path / "cert").write_bytes(pair.cert)
    (tmp_path / "key").write_bytes(pair.key)
    ours = ssl.create_default_context(cadata=authority.cert.decode())
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\nMSG evil 1 4\r\nevil\r\n")
        await writer.start_tls(theirs)
        writer.write(b"good")
        await writer.drain()
        await reader.read()

    async def story() -> None:
        client, server = await connected(talk)
        assert await client.readline() == b"INFO {}\r\n"
        assert client.unread_bytes > 0
        await client.connect_tls("127.0.0.1", ours, 0, 60)
        assert await client.read() == b"good"
        await ended(client, server)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_endless_greeting_is_an_error() -> None:
    """A line that does not end is given up after 64 KiB."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 200_000)

    async def story() -> None:
        client, server = await connected(talk)
        with pytest.raises(ConnectionError):
            await client.readline()
        await ended(client, server)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_the_end_wakes_everyone() -> None:
    """Readers, writers and closers that wait hear of a lost connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.transport.abort()

    async def story() -> None:
        client, server = await connected(talk)
        reading = asyncio.create_task(client.read())
        client.write(b"go")
        outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        assert outcome == b"" or isinstance(outcome, OSError)
        await client.wait_closed()
        client.write(b"into the void")
        with pytest.raises(ConnectionResetError):
            await client.drain()
        await ended(client, server)

    asyncio.run(asyncio.wait_for(story(), 60))
