"""Breaking a library's connections without touching other sockets."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

from broker import own_sockets


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    """Files, pipes and pollers are skipped; sockets are duplicated to look at, and closed again."""
    reader, writer = os.pipe()
    with (
        (tmp_path / "file").open("wb"),
        select.epoll(),
        os.fdopen(reader),
        os.fdopen(writer, "wb"),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what counts
        assert own_sockets.sever(lambda _: False) == 0
        port = server.getsockname()[1]
        assert own_sockets.sever(lambda one: one.getpeername()[1] == port) == 1
        assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        client.settimeout(10)
        assert client.recv(1) == b""
        assert own_sockets.sever(lambda one: one.getsockname()[1] == port) == 0  # only listens
