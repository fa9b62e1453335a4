"""The read of a Spark executor, from a cluster that loses a broker in the middle of a slice."""

from __future__ import annotations

import pytest

from broker.model.offsets import Offset
from clusterkit.running import Cluster
from spark_jobs.source.partitions import OffsetSlice
from spark_jobs.source.reader import read_slice

pytestmark = pytest.mark.integration

_RECORDS = 3_000


def test_a_slice_is_exact_when_its_broker_dies(cluster: Cluster) -> None:
    """The rows of a cut's tail come once each, in order, from whichever broker has them."""
    client = cluster.client()
    client.create_stream("sliced")
    with client.producer("sliced") as producer:
        for first in range(0, _RECORDS, 50):
            producer.send([b"%08d" % number + bytes(10_000) for number in range(first, first + 50)])
    cut = client.cut("sliced")
    piece = OffsetSlice(0, Offset(0), cut.partitions[0].hot_end)
    rows = read_slice(
        cluster.client(),
        piece,
        stream="sliced",
        stream_uuid=cut.stream_uuid,
        columns=("offset", "value"),
    )
    found = next(rows)["value"].to_pylist()
    assert len(found) < _RECORDS, "the slice came in one piece, so the test proves nothing"
    cluster.kill(cluster.leader("sliced"))
    for batch in rows:
        found += batch["value"].to_pylist()
    assert [int(value[:8]) for value in found] == list(range(_RECORDS))
