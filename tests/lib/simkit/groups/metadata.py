"""Group g of Headwater's own client in the metadata, in short words for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CommitPositions,
    CursorWrite,
    JoinMember,
    LeaveMember,
    SetCursors,
    decode,
    encode,
)
from broker.core.metadata.group_positions import position_of
from broker.core.metadata.group_state import PartitionClaim
from broker.core.metadata.size import weigh
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState, PartitionState
from broker.model.epochs import LeaderEpoch
from broker.model.groups import PositionCommit, partition_key
from broker.model.ids import BrokerId, StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

A, B = BrokerId("a"), BrokerId("b")
FIRST, SECOND = "1" * 32, "2" * 32


def stream_of(name: str, number: int, partitions: int) -> Stream:
    """Return a stream."""
    return Stream(
        name=name,
        uuid=StreamUuid(f"00000000-0000-0000-0000-{number:012}"),
        config=StreamConfig(subject=name, partitions=partitions),
        created_us=1,
        table_name=name,
    )


class GroupMetadata:
    """A state that commands change; after each one its invariants are checked."""

    def __init__(self, **partitions: int) -> None:
        streams = {
            name: stream_of(name, number, count)
            for number, (name, count) in enumerate(partitions.items())
        }
        rows = {one.uuid: rows_of(one.config.partitions) for one in streams.values()}
        bare = MetadataState(streams=streams, partitions=rows, feature_level=FEATURE_LEVEL_STREAMS)
        self.state = replace(bare, weight=weigh(bare))

    def do(self, command: Command) -> Any:
        """Apply a command; raise its refusal."""
        assert decode(encode(command)) == command
        self.state, reply = apply(self.state, command)
        assert self.state.weight == weigh(self.state)
        assert MetadataState.from_json(self.state.to_json()) == self.state
        if isinstance(reply, Rejected):
            raise reply.error
        return reply

    def join(self, member: str, *streams: str, **terms: Any) -> int:
        """Join group g."""
        values: dict[str, Any] = {
            "group": "g", "member": member, "instance": member.upper(), "session_ms": 10_000,
            "streams": streams or ("s",), "coordinator": A, **terms,
        }  # fmt: skip
        epoch: int = self.do(JoinMember(**values))["group_epoch"]
        return epoch

    def leave(self, member: str, **facts: Any) -> None:
        """Leave group g."""
        values: dict[str, Any] = {"group": "g", "member": member, "instance": member.upper()}
        self.do(LeaveMember(**{**values, **facts}))

    def key(self, stream: str, partition: int) -> str:
        """Return the key of a partition."""
        return partition_key(self.state.streams[stream].uuid, partition)

    def claims(self) -> dict[str, PartitionClaim]:
        """Return the claims of group g, by "stream/partition"."""
        names = {one.uuid: name for name, one in self.state.streams.items()}
        found = self.state.groups["g"].claims
        return {
            f"{names[StreamUuid(key.partition('/')[0])]}/{key.partition('/')[2]}": claim
            for key, claim in found.items()
        }

    def held(self, member: str) -> list[str]:
        """Return what a member has claimed."""
        return sorted(key for key, one in self.claims().items() if one.member == member)

    def write(self, partition: int, offset: int | None, **facts: Any) -> PositionCommit:
        """Return a write in stream s, under its present claim."""
        values: dict[str, Any] = {
            "stream_uuid": self.state.streams["s"].uuid,
            "partition": partition,
            "offset": offset,
            "number": 1,
        }
        if "epoch" not in facts:
            values["epoch"] = self.claims()[f"s/{partition}"].epoch
        return PositionCommit(**{**values, **facts})

    def commit(self, member: str, *writes: PositionCommit, **facts: Any) -> list[str]:
        """Commit; return what was refused."""
        values: dict[str, Any] = {
            "group": "g", "member": member, "instance": member.upper(), "writes": writes,
        }  # fmt: skip
        refused: list[str] = self.do(CommitPositions(**{**values, **facts}))["refused"]
        return refused

    def position(self, partition: int) -> int | None:
        """Return the group's position in stream s."""
        found = position_of(self.state, "g", self.state.streams["s"], partition)
        return None if found is None else found.offset

    def set_cursor(self, offset: int, stream: str = "s") -> None:
        """Set the cursor of group g in partition 0, as Liftbridge's clients do."""
        write = CursorWrite(cursor_id="__group:g", stream=stream, partition=0, offset=offset)
        self.do(SetCursors(writes=(write,)))


def rows_of(count: int) -> tuple[PartitionState, ...]:
    """Return the partitions of a stream, all led by A since leader epoch 1."""
    lineage = (Leadership(leader_epoch=LeaderEpoch(1), lineage_id=FIRST, start=Offset(0)),)
    row = PartitionState(
        leader=A, leader_epoch=LeaderEpoch(1), cold_end=Offset(0), isr=(A,), lineage=lineage
    )
    return (row,) * count
