"""The leases that count: those of the stream that have not ended."""

from __future__ import annotations

import pytest

from broker.core.metadata.state import LeaseState, MetadataState
from broker.errors import InvalidRequestError
from broker.model.ids import LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from broker.runtime.api.leases import (
    LEASE_TTL_MS_MAX,
    LEASE_TTL_MS_MIN,
    checked_ttl_ms,
    lease_floor,
    leases_on,
)

OURS, OTHER = (StreamUuid(f"00000000-0000-0000-0000-{number:012}") for number in (1, 2))
NOW_US = 1_000


def _lease(stream: StreamUuid, expires_us: int, floor: int, taken_us: int = 0) -> LeaseState:
    floors = (Offset(floor), Offset(floor + 100))
    return LeaseState(
        stream_uuid=stream, owner="me", expires_us=expires_us, floors=floors, taken_us=taken_us
    )


STATE = MetadataState(
    leases={
        LeaseId("ended"): _lease(OURS, NOW_US, 1),
        LeaseId("late"): _lease(OURS, NOW_US + 1, 20, taken_us=9),
        LeaseId("early"): _lease(OURS, NOW_US + 5, 30, taken_us=3),
        LeaseId("other"): _lease(OTHER, NOW_US + 9, 2),
    }
)


@pytest.mark.parametrize(
    ("stream", "partition", "now_us", "floor"),
    [
        (OURS, 0, NOW_US, 20),
        (OURS, 1, NOW_US, 120),
        (OURS, 0, NOW_US + 1, 30),
        (OURS, 0, NOW_US + 5, OFFSET_MAX),
        (OURS, 0, NOW_US - 1, 1),
        (OTHER, 0, NOW_US, 2),
    ],
)
def test_the_floor_is_the_lowest_that_is_held(
    stream: StreamUuid, partition: int, now_us: int, floor: int
) -> None:
    """Only leases of this stream and partition that have not ended count."""
    assert lease_floor(STATE, PartitionId(stream, PartitionNumber(partition)), now_us) == floor


def test_leases_that_have_not_ended_are_listed_oldest_first() -> None:
    """Those of other streams and ended ones are not."""
    assert [one.lease_id for one in leases_on(STATE, OURS, NOW_US)] == ["early", "late"]


@pytest.mark.parametrize("ttl_ms", [LEASE_TTL_MS_MIN - 1, LEASE_TTL_MS_MAX + 1, 0, -1])
def test_how_long_a_lease_may_last(ttl_ms: int) -> None:
    """A lifetime out of bounds is refused; the longest one within them is taken."""
    with pytest.raises(InvalidRequestError):
        checked_ttl_ms(ttl_ms)
    assert checked_ttl_ms(LEASE_TTL_MS_MAX) == LEASE_TTL_MS_MAX
