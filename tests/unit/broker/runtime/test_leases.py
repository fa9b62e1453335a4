"""The leases that count: those of the stream that have not ended."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from broker.core.metadata.state import LeaseState, MetadataState
from broker.errors import InvalidRequestError, MetadataFullError, QuotaExceededError
from broker.model.ids import LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream, StreamConfig
from broker.model.tenant import Tenant
from broker.runtime.api.leases import (
    LEASE_TTL_MS_MAX,
    LEASE_TTL_MS_MIN,
    LEASES_MAX,
    LEASES_OF_STREAM_MAX,
    LEASES_OF_TENANT_MAX,
    LEASES_OF_TENANTS_MAX,
    LeaseFloors,
    checked_ttl_ms,
    leases_on,
    require_room_for_lease,
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
    floors = LeaseFloors()
    for _ in range(2):  # the second answer is a kept one
        at = PartitionId(stream, PartitionNumber(partition))
        assert floors.floor(STATE, at, now_us) == floor


def test_kept_floors_are_those_of_every_lease() -> None:
    """Whatever is taken, renewed, dropped and ended, answers equal a look at each lease."""
    dice = random.Random(3)
    floors, leases, now_us = LeaseFloors(), dict[LeaseId, LeaseState](), 1_000
    for step in range(2_000):
        now_us += dice.randrange(-2, 6)
        match dice.randrange(4):
            case 0:
                wide = dice.randrange(1, 4)
                leases = {
                    **leases,
                    LeaseId(str(step)): LeaseState(
                        stream_uuid=dice.choice((OURS, OTHER)),
                        owner="me",
                        expires_us=now_us + dice.randrange(60),
                        floors=tuple(Offset(dice.randrange(9)) for _ in range(wide)),
                    ),
                }
            case 1 if leases:
                renewed = dice.choice(list(leases))
                longer = replace(leases[renewed], expires_us=now_us + dice.randrange(60))
                leases = {**leases, renewed: longer}
            case 2 if leases:
                dropped = dice.choice(list(leases))
                leases = {key: one for key, one in leases.items() if key != dropped}
        state = MetadataState(leases=leases)
        for stream in (OURS, OTHER):
            for partition in range(4):
                live = (
                    one.floor(partition)
                    for one in leases.values()
                    if one.stream_uuid == stream and one.expires_us > now_us
                )
                at = PartitionId(stream, PartitionNumber(partition))
                assert floors.floor(state, at, now_us) == min(live, default=OFFSET_MAX)


def test_answers_do_not_look_at_each_lease() -> None:
    """Two thousand leases on a wide stream: a round over its thousand partitions takes no second.

    A look at each lease would be two million looks a round, four rounds a second.
    """
    leases = {
        LeaseId(str(number)): LeaseState(
            stream_uuid=OURS,
            owner="me",
            expires_us=10**9 + number,
            floors=cast("tuple[Offset, ...]", tuple(range(number, number + 1024))),
        )
        for number in range(2_000)
    }
    state, floors = MetadataState(leases=leases), LeaseFloors()
    began_s = time.process_time()
    for _ in range(4):
        for number in range(1024):
            at = PartitionId(OURS, PartitionNumber(number))
            assert floors.floor(state, at, NOW_US) == number
    assert time.process_time() - began_s < 1.0


def _named(name: str, uuid: StreamUuid) -> Stream:
    return Stream(
        name=name, uuid=uuid, config=StreamConfig(subject=name), created_us=1, table_name=name
    )


def _held(*held: tuple[Stream, int], tenants: Sequence[Tenant] = ()) -> MetadataState:
    """Return the metadata of streams with so many leases each, and as many that have ended."""
    return MetadataState(
        leases={
            LeaseId(f"{stream.name}-{expires_us}-{number}"): _lease(stream.uuid, expires_us, 0)
            for stream, count in held
            for expires_us in (NOW_US, NOW_US + 1)
            for number in range(count)
        },
        streams={stream.name: stream for stream, _ in held},
        tenants={one.name: one for one in tenants},
    )


@pytest.mark.parametrize(
    ("ours", "others", "refused"),
    [
        (LEASES_OF_STREAM_MAX - 1, 5, False),
        (LEASES_OF_STREAM_MAX, 0, True),
        (0, LEASES_MAX - 1, False),
        (0, LEASES_MAX, True),
    ],
)
def test_the_number_of_leases_is_bounded(ours: int, others: int, refused: bool) -> None:
    """Of one stream and of all; leases that have ended do not count."""
    stream = _named("ours", OURS)
    state = _held((stream, ours), (_named("other", OTHER), others))
    if not refused:
        require_room_for_lease(state, stream, NOW_US)
        return
    with pytest.raises(MetadataFullError, match="lease drop"):
        require_room_for_lease(state, stream, NOW_US)


def test_tenants_leave_leases_to_everybody_else() -> None:
    """However many tenants there are, streams of no tenant have the last tenth."""
    shop, free = _named("shop-in", OURS), _named("free", StreamUuid(f"{9:036}"))
    tenants = [Tenant(name="shop"), Tenant(name="hr", leases_max=LEASES_MAX)]
    many = _named("hr-pay", OTHER)
    state = _held((shop, 0), (many, LEASES_OF_TENANTS_MAX), (free, 0), tenants=tenants)
    require_room_for_lease(state, free, NOW_US)
    with pytest.raises(MetadataFullError, match="streams of tenants"):
        require_room_for_lease(state, shop, NOW_US)
    require_room_for_lease(replace(state, tenants={}), shop, NOW_US)


@pytest.mark.parametrize(
    ("share", "most"), [(0, LEASES_OF_TENANT_MAX), (3, 3), (LEASES_MAX, LEASES_MAX // 2)]
)
def test_a_tenant_has_its_share_of_the_leases(share: int, most: int) -> None:
    """A quarter unless an administrator says otherwise; whatever it takes, others have theirs."""
    ours = [_named(f"shop-{number}", StreamUuid(f"{number:036}")) for number in range(5)]
    pay = _named("hr-pay", OTHER)
    tenants = [Tenant(name="shop", leases_max=share), Tenant(name="hr")]
    held = [(one, most // 5 + (number < most % 5)) for number, one in enumerate(ours)]
    state = _held(*held, (pay, 0), tenants=tenants)
    require_room_for_lease(state, pay, NOW_US)
    if share < LEASES_MAX:
        with pytest.raises(QuotaExceededError, match="lease drop") as caught:
            require_room_for_lease(state, ours[0], NOW_US)
        assert caught.value.facts == {"tenant": "shop", "limit": "leases_max"}
    fewer = replace(state, leases=dict(list(state.leases.items())[:-1]))
    require_room_for_lease(fewer, ours[4], NOW_US)


def test_leases_that_have_not_ended_are_listed_oldest_first() -> None:
    """Those of other streams and ended ones are not."""
    assert [one.lease_id for one in leases_on(STATE, OURS, NOW_US)] == ["early", "late"]


@pytest.mark.parametrize("ttl_ms", [LEASE_TTL_MS_MIN - 1, LEASE_TTL_MS_MAX + 1, 0, -1])
def test_how_long_a_lease_may_last(ttl_ms: int) -> None:
    """A lifetime out of bounds is refused; the longest one within them is taken."""
    with pytest.raises(InvalidRequestError):
        checked_ttl_ms(ttl_ms)
    assert checked_ttl_ms(LEASE_TTL_MS_MAX) == LEASE_TTL_MS_MAX
