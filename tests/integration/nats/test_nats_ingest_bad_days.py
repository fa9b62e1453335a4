"""Ingest when things go wrong: a server that dies, a log that is slow, a socket full of garbage.

The rule behind every test: a publisher that heard an ack finds its record, once; what may have been
lost shows in a counter.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.config import NatsConfig
from broker.errors import UnavailableError
from broker.runtime.ingest.nats_ingest import IngestLimits
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess, RawNats, pub

pytestmark = pytest.mark.integration

INFO = b'INFO {"server_id":"x","version":"2.15.0","max_payload":1048576,"headers":true}\r\n'


def publish_until_acked(server: NatsProcess, count: int, hurry: threading.Event) -> dict[int, int]:
    """Publish ``count`` records one by one, each until its ack comes; return their offsets."""
    offsets: dict[int, int] = {}
    connection: RawNats | None = None
    while len(offsets) < count:
        number = len(offsets)
        try:
            if connection is None:
                connection = RawNats(server.port, timeout_s=0.5)
                connection.subscribe("in.>")
            connection.publish(
                "foo",
                b"%d" % number,
                reply=f"in.{number}",
                headers=[("Nats-Msg-Id", f"id-{number}")],
            )
            while True:
                subject, body = connection.next_message()
                if subject == f"in.{number}":
                    break
            answer = json.loads(body)
            if "error" not in answer:
                offsets[number] = answer["offset"]
        except OSError:  # the server is away, or the answer is late: try again with the same id
            if connection is not None:
                connection.close()
            connection = None
            hurry.wait(0.02)
    assert connection is not None
    connection.close()
    return offsets


def test_a_restarting_server_loses_no_acked_record(tmp_path: Path) -> None:
    """nats-server is killed and started again under load; each ack is one stored record."""
    server = NatsProcess(tmp_path)
    hurry = threading.Event()
    offsets: dict[int, int] = {}
    with server, IngestRig(NatsConfig(url=server.url)) as rig:
        rig.add_stream("foo", puback=True)
        work = threading.Thread(
            target=lambda: offsets.update(publish_until_acked(server, 600, hurry))
        )
        work.start()
        for restart in range(3):
            target = 100 * (restart + 1)
            rig.wait(lambda: len(rig.rows("foo")) >= target, f"{target} records")  # noqa: B023
            server.stop()
            rig.wait(lambda: not rig.transport.connected, "the lost connection")
            server.start()
        work.join(120)
        assert not work.is_alive()
        stored = rig.values("foo")
        assert rig.transport.counters.disconnects == 3
        assert rig.stats("foo").gaps_total == rig.ingest.gaps_total == 3
        rig.wait(lambda: rig.transport.connected, "the connection")
        assert rig.transport.counters.connects == 4
    assert stored == [b"%d" % number for number in range(600)]
    assert offsets == {number: number for number in range(600)}


def test_a_stream_added_while_the_server_is_away_listens_when_it_is_back(tmp_path: Path) -> None:
    """add_stream says that it is late, and the next connection subscribes."""
    with NatsProcess(tmp_path) as server:
        config = NatsConfig(url=server.url, connect_timeout_ms=60_000)
        with IngestRig(config, later_timeout_ms=300) as rig:
            server.stop()
            rig.wait(lambda: not rig.transport.connected, "the lost connection")
            with pytest.raises(UnavailableError):
                rig.add_stream("foo", puback=True)
            server.start()
            rig.wait(lambda: rig.transport.connected, "the connection")
            with RawNats(server.port) as client:
                client.subscribe("in.>")
                client.publish("foo", b"x", reply="in.1")
                assert client.next_json()["seq"] == 1


def test_a_log_that_stays_full_drops_countably_and_tells(tmp_path: Path) -> None:
    """With a full queue a partition drops records: they are counted and refused; others go on."""
    limits = IngestLimits(stall_ms_max=200)
    with (
        NatsProcess(tmp_path) as server,
        IngestRig(NatsConfig(url=server.url), limits=limits, queue_batches_max=2) as rig,
        RawNats(server.port) as client,
    ):
        client.subscribe("in.>")
        rig.add_stream("foo", puback=True)
        rig.add_stream("bar", puback=True)
        rig.broker.partitions.handle("foo", 0).hold()
        sent = 0
        while rig.stats("foo").dropped_messages_total == 0:
            client.send(b"".join(pub("foo", b"%d" % n) for n in range(sent, sent + 500)))
            client.publish("foo", b"mine", reply=f"in.{sent + 500}")
            client.flush()
            sent += 501
            assert sent < 5_000_000, "nothing was ever dropped"
        client.publish("bar", b"other", reply="in.bar")
        heard = {}
        while "in.bar" not in heard:
            subject, body = client.next_message()
            heard[subject] = json.loads(body)
        assert rig.values("bar") == [b"other"]
        rig.broker.partitions.handle("foo", 0).release()
        retries = 0
        while "offset" not in heard.get("in.again", {}):  # a refused publish is tried again
            client.publish("foo", b"again", reply="in.again")
            retries += 1
            subject, body = client.next_message()
            heard[subject] = json.loads(body)
        sent += retries
        refused = {one for one, body in heard.items() if "error" in body}
        assert all(heard[one]["error"]["err_code"] == 10023 for one in refused)

        def settled() -> int:
            stats = rig.stats("foo")
            return stats.stored_messages_total + stats.dropped_messages_total

        rig.wait(lambda: settled() >= sent, "everything sent to be stored or dropped")
        assert settled() == sent
        rig.wait(lambda: rig.stats("foo").pending_bytes == 0, "nothing to be pending")
        stats = rig.stats("foo")
        assert stats.received_messages_total == sent
        assert stats.errors_total["OverloadedError"] == stats.dropped_messages_total
        acked = [one for one, body in heard.items() if "error" not in body and one[3:].isdigit()]
        assert rig.values("foo").count(b"mine") == len(acked)


def test_a_slow_broker_that_the_server_cuts_off_counts_a_gap(tmp_path: Path) -> None:
    """Kept from reading too long, the server ends the connection; that shows, and ingest heals."""
    settings = 'write_deadline: "1s"\nmax_pending: 1048576'
    limits = IngestLimits(stall_ms_max=30_000)
    with (
        NatsProcess(tmp_path, settings=settings) as server,
        IngestRig(NatsConfig(url=server.url), limits=limits, queue_batches_max=1) as rig,
        RawNats(server.port) as client,
    ):
        rig.add_stream("foo", puback=True)
        partition = rig.broker.partitions.handle("foo", 0)
        partition.hold()
        blob = pub("foo", b"x" * 8192) * 100
        sent = 0
        with RawNats(server.port) as watcher:
            watcher.subscribe("none")
            deadline_s = time.monotonic() + 3.0  # longer than the limit of a stall
            while sent < 40_000 or time.monotonic() < deadline_s:
                client.send(blob)
                sent += 100
                client.flush()
        partition.release()
        rig.wait(lambda: rig.transport.counters.disconnects > 0, "the cut connection")
        rig.wait(lambda: rig.transport.connected, "the next connection")
        assert rig.transport.counters.slow_consumer_events >= 1
        assert rig.stats("foo").gaps_total >= rig.stats("foo").slow_consumer_total >= 1
        client.subscribe("in.>")
        client.publish("foo", b"after", reply="in.1")
        assert "error" not in client.next_json()
        assert rig.values("foo")[-1] == b"after"
        assert len(rig.values("foo")) < sent


def test_unread_answers_are_dropped_not_records(tmp_path: Path) -> None:
    """Answers that cannot be written while the server is away are counted; the records stay."""
    with NatsProcess(tmp_path) as server, IngestRig(NatsConfig(url=server.url)) as rig:
        rig.add_stream("foo", puback=True)
        rig.broker.partitions.handle("foo", 0).hold()
        with RawNats(server.port) as client:
            client.send(b"".join(pub("foo", b"x", reply="in.1") for _ in range(100)))
            client.flush()
            rig.wait(lambda: rig.stats("foo").received_messages_total == 100, "the messages")
        server.stop()
        rig.wait(lambda: not rig.transport.connected, "the lost connection")
        rig.broker.partitions.handle("foo", 0).release()
        rig.wait(lambda: rig.transport.counters.dropped_sends == 100, "the dropped answers")
        assert len(rig.values("foo")) == 100


# ---------------------------------------------------------------------------- hostile servers

HOSTILE = {
    "silence": b"",
    "noise": bytes(range(1, 256)) * 40,
    "endless line": b"INFO " + b"x" * 3_000_000,
    "no json": b"INFO nonsense\r\n",
    "json that is no object": b"INFO 7\r\n",
    "bare info": b"INFO\r\n",
    "bad fields": b'INFO {"max_payload":"x","connect_urls":[7]}\r\n',
    "refusal": INFO + b"-ERR 'Authorization Violation'\r\n",
    "noise after the greeting": INFO + b"PONG\r\n" + b"\x00\xff" * 1000 + b"\r\n",
    "a lying length": INFO + b"PONG\r\nMSG foo 1048576 3\r\nlonger than three\r\n",
    "a giant length": INFO + b"PONG\r\nMSG foo 1048576 99999999999999\r\n",
    "a large promise": INFO + b"PONG\r\nMSG foo 1048576 60000000\r\nhalf",
    "bad info later": INFO + b"PONG\r\nINFO {not json}\r\n",
    "an endless line later": INFO + b"PONG\r\nMSG " + b"y" * 3_000_000,
    "stale": INFO + b"PONG\r\n-ERR 'Stale Connection'\r\n",
}


@contextmanager
def hostile_server(script: bytes, port: int = 0) -> Iterator[tuple[int, threading.Event]]:
    """Greet every connection with the script, then close it after a moment of silence."""
    listener = socket.create_server(("127.0.0.1", port))
    served, done = threading.Event(), threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.sendall(script)
                    connection.settimeout(0.2)
                    while connection.recv(65_536):
                        pass
                except OSError:
                    pass
            served.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], served
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_server_at_start_is_a_typed_error(script: bytes) -> None:
    """Whatever it sends, start fails in time with UnavailableError and nothing hangs or grows."""
    with hostile_server(script) as (port, _):
        config = NatsConfig(url=f"nats://127.0.0.1:{port}", connect_timeout_ms=700)
        rig = IngestRig(config)
        began_s = time.monotonic()
        with pytest.raises(UnavailableError), rig:
            pass
        assert time.monotonic() - began_s < 60
        assert rig.transport._stream.buffered_bytes < 8 * 1024 * 1024
        assert rig.crashes == []


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_server_in_between_is_survived(tmp_path: Path, script: bytes) -> None:
    """A good server is replaced by a hostile one and comes back: ingest listens again."""
    server = NatsProcess(tmp_path)
    config = NatsConfig(url=server.url, connect_timeout_ms=60_000)
    with server, IngestRig(config, later_timeout_ms=700) as rig:
        # The server must be up again for the rig's drain, so everything happens in here.
        rig.add_stream("foo", puback=True)
        server.stop()
        rig.wait(lambda: not rig.transport.connected, "the lost connection")
        with hostile_server(script, server.port) as (_, served):
            assert served.wait(60)
        server.start()
        rig.wait(lambda: rig.transport.connected, "the good server")
        with RawNats(server.port) as client:
            client.subscribe("in.>")
            client.publish("foo", b"x", reply="in.1")
            assert client.next_json()["seq"] == 1
        assert rig.crashes == []
