"""The metadata has one limit: a command beyond it is refused, and stored metadata is opened."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    CreateTenant,
    CreateToken,
    CursorWrite,
    DeleteStream,
    DropLease,
    GrantAccess,
    SetCursors,
    SetQuota,
    TakeLease,
    decode,
    encode,
    encode_new,
)
from broker.core.metadata.size import (
    ORDINARY_WEIGHT_MAX,
    PARTITION_WEIGHT,
    SNAPSHOT_BYTES_MAX,
    STATE_WEIGHT_MAX,
    weigh,
)
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, Loss, MetadataState
from broker.errors import HeadwaterError, MetadataFullError
from broker.model.access import Grant
from broker.model.epochs import LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.lineage import LINEAGE_KEPT, Leadership
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.quota import Quota
from broker.model.stream import PARTITIONS_MAX, Stream, StreamConfig
from broker.model.tenant import Tenant
from cases import seeds

pytestmark = pytest.mark.slow

ME = BrokerId("broker-1")


def _uuid(number: int) -> StreamUuid:
    return StreamUuid(f"00000000-0000-0000-0000-{number:012}")


def _create(number: int, partitions: int = 1, weight_max: int | None = None) -> CreateStream:
    stream = Stream(
        name=f"s{number}",
        uuid=_uuid(number),
        config=StreamConfig(subject=f"s{number}", partitions=partitions),
        created_us=number,
        table_name=f"s{number}",
    )
    return CreateStream(stream=stream, leader=ME, weight_max=weight_max)


def _lease(number: int, stream: int, now_us: int = 0, weight_max: int | None = None) -> TakeLease:
    return TakeLease(
        lease_id=LeaseId(f"{number:032x}"),
        stream_uuid=_uuid(stream),
        owner="reader",
        expires_us=now_us + 100,
        now_us=now_us,
        weight_max=weight_max,
    )


def _refusal(state: MetadataState, command: Command) -> HeadwaterError | None:
    _, reply = apply(state, command)
    return reply.error if isinstance(reply, Rejected) else None


def _fill(state: MetadataState, make: Any) -> tuple[MetadataState, int, HeadwaterError]:
    number = 0
    while True:
        after, reply = apply(state, make(number))
        if isinstance(reply, Rejected):
            assert after is state
            return state, number, reply.error
        state, number = after, number + 1


def test_streams_are_refused_at_the_limit_and_all_before_are_opened_again() -> None:
    """The error is typed, and freed room is used again, however many leases expire meanwhile."""
    state, count, error = _fill(
        MetadataState(), lambda number: _create(number, PARTITIONS_MAX, STATE_WEIGHT_MAX)
    )
    assert isinstance(error, MetadataFullError)
    assert error.limit_bytes == STATE_WEIGHT_MAX
    assert count == STATE_WEIGHT_MAX // (PARTITION_WEIGHT * PARTITIONS_MAX + 300)
    opened, index = decode_snapshot(encode_snapshot(state, 7))
    assert (index, opened == state, opened.weight) == (7, True, state.weight)
    smaller, _ = apply(state, DeleteStream(name="s3", expected_uuid=_uuid(3)))
    again = _create(count, PARTITIONS_MAX, STATE_WEIGHT_MAX)
    assert isinstance(_refusal(opened, again), MetadataFullError)
    assert _refusal(smaller, again) is None


def test_leases_on_a_wide_stream_are_refused_at_the_limit() -> None:
    """A lease has a floor for each partition, shared in memory; an ended lease makes room."""
    limit = STATE_WEIGHT_MAX // 8
    state, _ = apply(MetadataState(), _create(1, PARTITIONS_MAX))
    state, count, error = _fill(state, lambda number: _lease(number, 1, weight_max=limit))
    assert isinstance(error, MetadataFullError)
    assert count > 200
    assert len({id(one.floors) for one in state.leases.values()}) == 1
    assert _refusal(state, _lease(count, 1, now_us=100, weight_max=limit)) is None
    first = next(iter(state.leases))
    smaller, _ = apply(state, DropLease(lease_id=first))
    assert _refusal(smaller, _lease(count, 1, weight_max=limit)) is None


def test_a_command_of_an_older_build_is_applied_as_it_was() -> None:
    """Its command named no limit: a replay must not refuse an accepted command."""
    state = replace(MetadataState(), weight=STATE_WEIGHT_MAX)
    assert _refusal(state, _create(1)) is None
    command = encode(_create(1)).replace(b',"weight_max":null', b"")
    assert decode(command) == _create(1)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_weight_that_is_kept_is_the_one_that_is_counted(seed: int) -> None:
    """Also after commands that change nothing."""
    rng = random.Random(seed)
    state = MetadataState()
    for now_us in range(120):
        stream = rng.randrange(6)
        command: Command = rng.choice(
            (
                _create(stream, rng.choice((1, 4))),
                DeleteStream(name=f"s{stream}", expected_uuid=_uuid(stream)),
                _lease(rng.randrange(9), stream, now_us=10 * now_us),
                DropLease(lease_id=LeaseId(f"{rng.randrange(9):032x}")),
            )
        )
        state, _ = apply(state, command)
        assert state.weight == weigh(state)
        assert MetadataState.from_json(state.to_json()).weight == state.weight


def test_whatever_happens_to_a_state_at_the_limit_it_is_opened_again() -> None:
    """Elections cannot be refused and make partitions larger, but never beyond a reader's limit."""
    brokers = tuple(BrokerId(f"broker-{number:012}") for number in range(7))
    grown = LeaderEpoch(10**9)
    loss = Loss(
        leader_epoch=grown,
        leader=brokers[0],
        log_end=Offset(OFFSET_MAX),
        known_end=Offset(OFFSET_MAX),
        given_up=brokers[1:4],
        operator="o" * 60,
    )
    lineage = tuple(
        Leadership(leader_epoch=grown, lineage_id="f" * 32, start=Offset(10**15))
        for _ in range(LINEAGE_KEPT)
    )
    state, _ = apply(MetadataState(), _create(1))
    (row,) = state.partitions[_uuid(1)]
    worst = replace(
        row,
        leader=brokers[0],
        leader_epoch=grown,
        partition_epoch=PartitionEpoch(10**9),
        cold_end=Offset(10**15),
        replicas=brokers,
        isr=brokers[:4],
        eligible=brokers[4:],
        tried=brokers,
        target=brokers,
        losses=(loss, loss),
        lineage=lineage,
    )
    large = replace(state, partitions={_uuid(1): (worst,)})
    growth = SNAPSHOT_BYTES_MAX // STATE_WEIGHT_MAX
    assert len(large.to_json()) <= growth * state.weight


def test_whatever_adds_is_proposed_under_the_limit() -> None:
    """A broker's own commands name it; those that add nothing have none."""
    limited = replace(_create(1), weight_max=ORDINARY_WEIGHT_MAX)
    assert decode(encode_new(_create(1))) == replace(limited, one_answers=True)
    lease = _lease(1, 1)
    assert decode(encode_new(lease)) == replace(lease, weight_max=ORDINARY_WEIGHT_MAX)
    drop = DropLease(lease_id=LeaseId("a" * 32))
    assert encode_new(drop) == encode(drop)


def test_administrators_find_room_when_nobody_else_does() -> None:
    """What makes room and who may do what can be decided in full metadata."""
    full = replace(MetadataState(feature_level=FEATURE_LEVEL_ACCESS), weight=ORDINARY_WEIGHT_MAX)
    write = CursorWrite(cursor_id="c", stream="s", partition=0, offset=1)
    there, _ = apply(full, _create(2))
    for command in (_create(1), SetCursors(writes=(write,)), _lease(1, 2)):
        error = _refusal(there, decode(encode_new(command)))
        assert isinstance(error, MetadataFullError), command
        assert error.limit_bytes == ORDINARY_WEIGHT_MAX
    grant = Grant(principal="ann", kind="stream", pattern="s", actions=("consume",))
    for change in (
        GrantAccess(grants=(grant,)),
        CreateToken(token_id="0" * 16, digest="ab" * 32, principal="ann", created_us=7),
        SetQuota(quota=Quota(principal="ann", requests_per_s=10)),
        CreateTenant(tenant=Tenant(name="shop")),
    ):
        assert _refusal(full, decode(encode_new(change))) is None, change
        brim = replace(full, weight=STATE_WEIGHT_MAX)
        assert isinstance(_refusal(brim, decode(encode_new(change))), MetadataFullError)
