"""What a broker answers to a purge, as the client reads it."""

from __future__ import annotations

from typing import Any

from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from headwater.client.descriptions import PartitionPosition, StreamDescription
from headwater.client.purging import purge


class OlderBroker:
    """Answers as a build did that told no purged end."""

    def at_leader(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Return its one result."""
        return [{"partition": 0, "start": 3, "end": 9, "in_table": False}]


def test_the_answer_of_an_older_broker_is_understood() -> None:
    """The purge was done: an internal error would say that it was not."""
    uuid = StreamUuid("00000000-0000-0000-0000-000000000001")
    config = StreamConfig(subject="s", tiering=False)
    stream = Stream(name="s", uuid=uuid, config=config, created_us=1, table_name="s")
    position = PartitionPosition(
        partition=0, subject="s", start=Offset(3), log_start=Offset(3), high_watermark=Offset(9),
        leader_epoch=1, leader="b",
    )  # fmt: skip
    found = StreamDescription(cluster="c", stream=stream, partitions=(position,))
    (done,) = purge(OlderBroker(), found, None, {"before": None, "before_us": None})  # type: ignore[arg-type]
    assert (done.start, done.end, done.purged_end) == (3, 9, 9)
