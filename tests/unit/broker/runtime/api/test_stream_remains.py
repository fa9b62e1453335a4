"""What a broker tells of a stream that may be deleted: of the one that has the name, or had it."""

from __future__ import annotations

from pathlib import Path

from broker.model.stream import StreamConfig
from broker.model.tiering import StreamRemains
from simkit.brokers.brokers import disk_broker

UNKNOWN = StreamRemains(present=False, deleted=False, shipping=False)


def test_the_uuid_of_another_stream_tells_nothing(tmp_path: Path) -> None:
    """The rights were asked by the name; the answer is that of a stream that is not there."""
    with disk_broker(tmp_path) as broker:
        mine = broker.streams.create("mine", StreamConfig(subject="m", tiering=False))
        theirs = broker.streams.create("theirs", StreamConfig(subject="t", tiering=False))
        assert broker.cold.remains("mine", mine.uuid).present
        for name in ("mine", "nothing"):
            assert broker.cold.remains(name, theirs.uuid) == UNKNOWN
        broker.streams.delete("mine")
        found = broker.cold.remains("mine", mine.uuid)
        assert (found.present, found.deleted) == (False, True)
        again = broker.streams.create("mine", StreamConfig(subject="m", tiering=False))
        assert broker.cold.remains("mine", mine.uuid).deleted
        assert broker.cold.remains("mine", again.uuid).present
