"""A header that looks like a message id swallows no message, also after a broker was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.schema import HEADERS_TYPE
from crashkit.processes import BrokerProcess
from headwater.client import Client
from simkit.servers.natsproc import NatsProcess, RawNats

pytestmark = pytest.mark.integration


def _ask(nats: NatsProcess, value: bytes, message_id: str) -> dict[str, Any]:
    """Publish over NATS; return the PubAck."""
    with RawNats(nats.port) as publisher:
        publisher.subscribe("in.>")
        headers = [("Nats-Msg-Id", message_id)]
        publisher.publish("s", value, reply="in.1", headers=headers)
        return publisher.next_json()


def test_a_killed_broker_takes_no_copied_header_for_a_message_id(tmp_path: Path) -> None:
    """A Flight record has the header of id A; a NATS message has id B. Only B counts, ever."""
    with NatsProcess(tmp_path) as nats:
        broker = BrokerProcess(tmp_path / "b", nats_url=nats.url, lake="")
        try:
            broker.start()
            broker.wait_ready_saying()  # NATS is there
            copied = pa.array([[{"key": "Nats-Msg-Id", "value": b"A"}]], HEADERS_TYPE)
            with Client(broker.url) as client:
                client.create_stream("s", puback=True)
                with client.producer("s") as producer:
                    rows = {"value": pa.array([b"copy"], pa.binary()), "headers": copied}
                    producer.send(pa.RecordBatch.from_pydict(rows)).result()
            assert _ask(nats, b"b", "B")["seq"] == 2
            broker.kill()
            broker.start()
            broker.wait_ready_saying()  # NATS is there
            first, again = _ask(nats, b"a", "A"), _ask(nats, b"b", "B")
            assert (first["seq"], first.get("duplicate", False)) == (3, False)
            assert (again["seq"], again["duplicate"]) == (2, True)
            with Client(broker.url) as client, client.fetch("s", 0, 0, end=3) as found:
                values = [value for one in found for value in one.batch["value"].to_pylist()]
            assert values == [b"copy", b"b", b"a"]
        finally:
            broker.kill()
