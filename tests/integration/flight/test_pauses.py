"""Paused and read-only streams as a client of Flight meets them."""

from __future__ import annotations

import pytest

from broker.errors import PartitionReadonlyError, StreamRecreatedError, UnknownPartitionError
from broker.model.ids import StreamUuid
from headwater.client import Client

pytestmark = pytest.mark.integration


def test_a_stream_is_paused_and_read_only_for_publishers(client: Client) -> None:
    """A producer resumes what is paused, and is refused by name by what is read-only."""
    client.pause_stream("s", [0], resume_all=True)
    (part,) = client.describe("s").partitions
    assert (part.paused, part.readonly) == (True, False)
    with client.producer("s") as producer:
        assert producer.send([b"a"]).result(timeout=30).base_offset == 0
        assert not client.describe("s").partitions[0].paused
        client.pause_stream("s")
        assert producer.send([b"b"]).result(timeout=30).base_offset == 1, "in the same session"
    assert not client.describe("s").partitions[0].paused
    client.set_stream_readonly("s")
    with pytest.raises(PartitionReadonlyError) as refused, client.producer("s") as producer:
        producer.send([b"c"])
    assert (refused.value.stream, refused.value.partition) == ("s", 0)
    client.pause_stream("s")
    with client.fetch("s") as rows:
        found = [one for part in rows for one in part.batch.column("value").to_pylist()]
        assert found == [b"a", b"b"], "what is stored is read"
    client.resume_stream("s")
    client.set_stream_readonly("s", readonly=False)
    assert not client.describe("s").partitions[0].readonly
    gone = StreamUuid("00000000-0000-4000-8000-000000000009")
    for call in (client.pause_stream, client.resume_stream, client.set_stream_readonly):
        with pytest.raises(StreamRecreatedError):
            call("s", stream_uuid=gone)
        with pytest.raises(UnknownPartitionError):
            call("s", [1])
