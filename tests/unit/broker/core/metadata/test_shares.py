"""What a stream may have of the metadata: cursors and positions of groups."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from uuid import NAMESPACE_DNS, uuid5

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    Command,
    CommitPositions,
    CreateStream,
    CursorWrite,
    DeleteGroup,
    DeleteStream,
    DropLease,
    JoinGroup,
    JoinMember,
    LeaveGroup,
    ResetPositions,
    SetCursors,
    TakeLease,
)
from broker.core.metadata.group_state import GroupPosition, GroupState, cursor_key
from broker.core.metadata.shares import PLACES_OF_PARTITION_MAX, TENANT_WEIGHT_MAX, Shares
from broker.core.metadata.size import PARTITION_WEIGHT, weigh
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import MetadataFullError, QuotaExceededError
from broker.model.groups import PositionReset, partition_key
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.tenant import Tenant
from cases import seeds
from simkit.groups.metadata import A, GroupMetadata


def cursor(cursor_id: str, stream: str = "s", partition: int = 0) -> SetCursors:
    """Return the command that sets a cursor."""
    write = CursorWrite(cursor_id=cursor_id, stream=stream, partition=partition, offset=7)
    return SetCursors(writes=(write,))


def with_cursors(state: MetadataState, stream: str, count: int) -> MetadataState:
    """Return the state with so many cursors of a stream."""
    key = cursor_key(stream, 0)
    return replace(state, cursors={f"{stream}-{one}": {key: 1} for one in range(count)})


@pytest.mark.parametrize(("stream", "most"), [("s", 4_096), ("wide", 8_192), ("gone", 4_096)])
def test_a_stream_has_so_many_cursors_for_each_partition(stream: str, most: int) -> None:
    """In whichever partition they are. A cursor that is there moves; other streams are free."""
    state = GroupMetadata(s=1, wide=2, other=1).state
    shares = Shares()
    assert shares.refusal(with_cursors(state, stream, most - 1), cursor("new", stream)) is None
    full = with_cursors(state, stream, most)
    for partition in (0, 1, 10**9):
        refused = shares.refusal(full, cursor("new", stream, partition))
        assert isinstance(refused, MetadataFullError)
        assert (refused.limit, refused.cursors) == (most, most)
        assert "deleted" in refused.message
    assert shares.refusal(full, cursor(f"{stream}-0", stream)) is None
    assert shares.refusal(full, cursor(f"{stream}-0", "other")) is None
    twice = SetCursors(writes=(*cursor("a", stream).writes, *cursor("b", stream).writes))
    assert shares.refusal(with_cursors(state, stream, most - 1), twice) is not None


def test_groups_have_so_many_positions_in_a_stream() -> None:
    """By each of the commands that make one; positions that are there move."""
    metadata = GroupMetadata(s=1, other=1)
    metadata.join("m")
    uuid = metadata.state.streams["s"].uuid
    at = {partition_key(uuid, 0): GroupPosition(offset=Offset(1))}
    groups = {f"g{one}": at for one in range(PLACES_OF_PARTITION_MAX)}
    full = replace(metadata.state, positions=groups)
    shares = Shares()
    writes = (PositionReset(stream_uuid=uuid, partition=0, offset=4),)
    commit = CommitPositions(group="new", member="m", instance="i", writes=(metadata.write(0, 4),))
    for command in (
        cursor("__group:new"),
        ResetPositions(group="new", writes=writes),
        commit,
    ):
        refused = shares.refusal(full, command)
        assert isinstance(refused, MetadataFullError), command
        assert "headwater group delete" in refused.message
    assert shares.refusal(full, ResetPositions(group="g7", writes=writes)) is None
    assert shares.refusal(full, cursor("__group:g7")) is None
    assert shares.refusal(full, cursor("__group:new", "other")) is None
    released = replace(commit, writes=(replace(metadata.write(0, 4), offset=None, release=True),))
    assert shares.refusal(full, released) is None
    fewer = replace(full, positions=dict(list(groups.items())[1:]))
    assert shares.refusal(fewer, commit) is None


def tenanted(metadata_bytes_max: int = 0) -> GroupMetadata:
    """Return metadata of two streams of tenant shop, one of tenant hr, and one of nobody."""
    metadata = GroupMetadata(**{"shop-in": 1, "shop-out": 1, "hr-pay": 1, "free": 1})
    tenants = {
        "shop": Tenant(name="shop", metadata_bytes_max=metadata_bytes_max),
        "hr": Tenant(name="hr"),
    }
    metadata.state = replace(metadata.state, tenants=tenants, feature_level=FEATURE_LEVEL_MAX)
    metadata.state = replace(metadata.state, weight=weigh(metadata.state))
    return metadata


def lease(state: MetadataState, stream: str) -> TakeLease:
    """Return the command that takes a lease on a stream."""
    return TakeLease(
        lease_id=LeaseId("a" * 32),
        stream_uuid=state.streams[stream].uuid,
        owner="reader",
        expires_us=99,
        now_us=1,
    )


def growing(state: MetadataState, stream: str) -> list[Command]:
    """Return a command of each kind that makes the metadata heavier for a stream's tenant."""
    present = state.streams[stream]
    group = stream + "-g"
    writes = (PositionReset(stream_uuid=present.uuid, partition=0, offset=4),)
    wider = present.grown(min(16, 2 * present.config.partitions))
    slower = replace(present, config=replace(present.config, local_retention_bytes=10**12))
    new = replace(present, name=stream + "-new", uuid=StreamUuid(str(uuid5(NAMESPACE_DNS, stream))))
    return [
        lease(state, stream),
        cursor("c", stream),
        cursor("c", stream + "-gone"),
        cursor("__group:" + group, stream),
        ResetPositions(group=group, writes=writes),
        JoinGroup(group=group, member="m", streams=(stream,), coordinator=A),
        JoinMember(
            group=group,
            member="m",
            instance="i",
            streams=(stream,),
            session_ms=10_000,
            coordinator=A,
        ),
        AddPartitions(expected=present, wanted=wider, leader=A),
        AlterStream(expected=present, wanted=slower),
        CreateStream(stream=new, leader=A),
    ]


def test_a_tenant_has_its_share_of_the_metadata() -> None:
    """Whatever it adds is refused beyond; the others, and what makes it lighter, are not."""
    state = tenanted().state
    shares = Shares()
    shares.refusal(state, lease(state, "free"))
    weight = shares.weight(state.tenants["shop"])
    assert 2 * PARTITION_WEIGHT < weight < 3 * PARTITION_WEIGHT
    full = tenanted(metadata_bytes_max=weight).state
    for command in growing(full, "shop-in"):
        refused = shares.refusal(full, command)
        assert isinstance(refused, QuotaExceededError), command
        assert refused.facts == {"tenant": "shop", "limit": "metadata_bytes_max"}
        assert shares.refusal(state, command) is None, command
    for stream in ("hr-pay", "free"):
        for command in growing(full, stream):
            assert shares.refusal(full, command) is None, command
    uuid = full.streams["shop-in"].uuid
    assert shares.refusal(full, DeleteStream(name="shop-in", expected_uuid=uuid)) is None
    present = full.streams["shop-in"]
    lighter = replace(present, config=replace(present.config, subject="s"))
    assert shares.refusal(full, AlterStream(expected=present, wanted=lighter)) is None


def test_a_tenant_without_a_share_has_a_quarter() -> None:
    """So no tenant takes the room of all others, although nobody set a limit."""
    metadata = tenanted()
    key, long = cursor_key("shop-in", 0), "\N{BOMB}" * 250
    ids = range(TENANT_WEIGHT_MAX // len(json.dumps(long)))
    cursors = {f"{long}{number:06}": {key: 1} for number in ids}
    state = replace(metadata.state, cursors=cursors)
    assert isinstance(Shares().refusal(state, lease(state, "shop-out")), QuotaExceededError)
    assert Shares().refusal(state, lease(state, "hr-pay")) is None
    half = replace(state, cursors=dict(list(cursors.items())[: len(cursors) // 2]))
    assert Shares().refusal(half, lease(half, "shop-out")) is None


@pytest.mark.parametrize("seed", seeds(20))
def test_the_weight_of_a_tenant_follows_the_metadata(seed: int) -> None:
    """It is the same as counted at once, whatever came and went in between."""
    rng = random.Random(seed)
    shares, state = Shares(), tenanted().state
    earlier = [state]
    for _ in range(60):
        stream = rng.choice(sorted(state.streams) or ["shop-in"])
        known = state.streams.get(stream)
        commands: list[Command] = [DeleteGroup(group=stream + "-g")]
        if known is not None:
            commands += growing(state, stream)
            commands.append(DropLease(lease_id=LeaseId("a" * 32)))
            if rng.random() < 0.2:
                commands = [DeleteStream(name=stream, expected_uuid=known.uuid)]
        for member in state.groups.get(stream + "-g", GroupState(coordinator=A, epoch=0)).members:
            commands.append(LeaveGroup(group=stream + "-g", member=member))
        state, _ = apply(state, rng.choice(commands))
        earlier.append(state)
        looked = rng.choice((state, state, rng.choice(earlier)))
        fresh = Shares()
        for one in (shares, fresh):
            one.refusal(looked, cursor("never", "nowhere"))
        assert shares._weights == fresh._weights
        assert shares._names == fresh._names
        assert all(weight > 0 for weight in shares._weights.values())


@pytest.mark.parametrize("seed", seeds(20))
def test_the_counts_follow_the_metadata(seed: int) -> None:
    """Whatever comes and goes, and also back to metadata of before."""
    rng = random.Random(seed)
    shares, state = Shares(), GroupMetadata(s=2, t=1).state
    earlier = [state]
    for _ in range(60):
        stream = rng.choice(sorted(state.streams) or ["s"])
        known = state.streams.get(stream)
        command: Command = cursor(
            rng.choice(("a", "b", "__group:g", "__group:h")), stream, rng.randrange(2)
        )
        if rng.random() < 0.1:
            command = DeleteGroup(group="g")
        if rng.random() < 0.02 and known is not None:
            command = DeleteStream(name=stream, expected_uuid=known.uuid)
        state, _ = apply(state, command)
        earlier.append(state)
        looked = rng.choice((state, state, rng.choice(earlier)))
        shares.refusal(looked, cursor("never"))
        cursors = Counter(key.partition(",")[2] for one in looked.cursors.values() for key in one)
        assert shares._cursors == cursors
        positions = Counter(
            key.partition("/")[0] for one in looked.positions.values() for key in one
        )
        assert shares._positions == positions
