"""What a planner of a streaming query hears of a stream that is given partitions meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.errors import UnknownPartitionError
from broker.model.offsets import Offset
from spark_jobs.source.lookup import BrokerLookup


class Growing:
    """A client of a broker that has not opened a new partition when it is asked first."""

    def __init__(self) -> None:
        self.asked = 0

    def high_watermarks(self, names: list[str]) -> dict[str, Any]:
        """Answer the second call."""
        self.asked += 1
        if self.asked == 1:
            raise UnknownPartitionError.of("s", 1, 1)
        ends = SimpleNamespace(
            lineage_ids=("a", "b"), offsets=(Offset(1), Offset(0)), stream_uuid="u"
        )
        return dict.fromkeys(names, ends)


def test_a_partition_that_is_being_added_is_waited_for() -> None:
    """The query goes on; it does not end because its broker was asked a moment too early."""
    client = Growing()
    found = BrokerLookup(cast("Any", client)).committed("s")
    assert (client.asked, found.ends) == (2, (1, 0))
