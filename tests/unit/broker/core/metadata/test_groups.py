"""Cursors and consumer groups in the metadata."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CursorWrite,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    ReportCoordinator,
    SetCursors,
    decode,
    encode,
    encode_new,
)
from broker.core.metadata.group_state import cursor_key
from broker.core.metadata.size import weigh
from broker.core.metadata.state import FEATURE_LEVEL_LIFTBRIDGE, BrokerState, MetadataState
from broker.errors import (
    FeatureLevelError,
    GroupChangedError,
    InvalidRequestError,
    MetadataFullError,
    UnknownGroupError,
)
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from cases import each_of, seeds

A, B = BrokerId("a"), BrokerId("b")


def state_with(*streams: str) -> MetadataState:
    """Return a state with these streams."""
    made = {
        name: Stream(
            name=name,
            uuid=StreamUuid(f"00000000-0000-0000-0000-{number:012}"),
            config=StreamConfig(subject=name),
            created_us=1,
            table_name=name,
        )
        for number, name in enumerate(streams)
    }
    partitions = {one.uuid: () for one in made.values()}
    bare = MetadataState(
        streams=made, partitions=partitions, feature_level=FEATURE_LEVEL_LIFTBRIDGE
    )
    return replace(bare, weight=weigh(bare))


class Metadata:
    """A state that commands change; after each one its invariants are checked."""

    def __init__(self, *streams: str) -> None:
        self.state = state_with(*streams)

    def do(self, command: Command) -> Any:
        """Apply a command; raise its refusal."""
        assert decode(encode(command)) == command
        self.state, reply = apply(self.state, command)
        assert self.state.weight == weigh(self.state)
        assert MetadataState.from_json(self.state.to_json()) == self.state
        if isinstance(reply, Rejected):
            raise reply.error
        return reply

    def set(self, cursor_id: str, stream: str, partition: int, offset: int, **facts: Any) -> None:
        """Set a cursor."""
        write = CursorWrite(cursor_id=cursor_id, stream=stream, partition=partition, offset=offset)
        self.do(SetCursors(writes=(write,), **facts))

    def join(self, member: str, *streams: str, **facts: Any) -> int:
        """Join group g; return its epoch."""
        command = JoinGroup(group="g", member=member, streams=streams, coordinator=A, **facts)
        epoch: int = self.do(command)["group_epoch"]
        return epoch

    def report(self, member: str, epoch: int, coordinator: BrokerId = A) -> Any:
        """Report the coordinator of group g."""
        return self.do(
            ReportCoordinator(
                group="g", member=member, coordinator=coordinator, epoch=epoch, candidate=B
            )
        )


def test_a_cursor_is_its_newest_position() -> None:
    """Each id, stream and partition has one cursor, which may go back; commas in names are safe."""
    metadata = Metadata("s")
    metadata.set("c", "s", 0, 5)
    metadata.set("c", "s", 1, 7)
    metadata.set("c", "1,s", 0, 9)
    metadata.set("c", "s", 0, 3)
    metadata.set("d", "s", 0, 8)
    assert metadata.state.cursors == {
        "c": {cursor_key("s", 0): 3, cursor_key("s", 1): 7, cursor_key("1,s", 0): 9},
        "d": {cursor_key("s", 0): 8},
    }


@pytest.mark.parametrize(
    "write", [("", "s", 0, 0), ("c", "", 0, 0), ("c" * 257, "s", 0, 0), ("c", "s", -1, 0),
              ("c", "s", 0, -2)],
)  # fmt: skip
def test_a_cursor_that_cannot_be_is_refused(write: tuple[str, str, int, int]) -> None:
    """Names have a length, numbers are not negative; nothing of the command is stored."""
    metadata = Metadata("s")
    with pytest.raises(InvalidRequestError):
        metadata.set(*write)
    assert metadata.state == state_with("s")


def test_cursors_and_groups_grow_up_to_the_limit() -> None:
    """What is there may be set again even if nothing more fits."""
    metadata = Metadata("s")
    metadata.set("c", "s", 0, 1)
    full = metadata.state.weight
    metadata.set("c", "s", 0, 2, weight_max=full)
    with pytest.raises(MetadataFullError):
        metadata.set("c", "s", 1, 1, weight_max=full)
    with pytest.raises(MetadataFullError):
        metadata.join("m", "s", weight_max=full)
    join = JoinGroup(group="g", member="m", streams=("s",), coordinator=A)
    told = decode(encode_new(join))
    assert isinstance(told, JoinGroup)
    assert told.weight_max is not None


def test_a_group_lives_from_its_first_member_to_its_last() -> None:
    """Each change gives a higher epoch, also of a group that begins again."""
    metadata = Metadata("s", "t")
    epochs = [metadata.join("m", "t", "s", "t"), metadata.join("n", "s")]
    assert metadata.state.groups["g"].members == {"m": ("s", "t"), "n": ("s",)}
    assert metadata.state.groups["g"].coordinator == A
    leaving = [LeaveGroup(group="g", member=member) for member in ("m", "n")]
    epochs.extend(metadata.do(one)["group_epoch"] for one in leaving)
    assert metadata.state.groups == {}
    epochs.append(metadata.join("m", "s"))
    assert epochs == sorted(set(epochs))


def test_what_does_not_fit_the_group_is_refused() -> None:
    """A member that is there, an unknown stream, group or member, and an old epoch."""
    metadata = Metadata("s")
    for unknown in (LeaveGroup(group="g", member="m"),):
        with pytest.raises(UnknownGroupError):
            metadata.do(unknown)
    with pytest.raises(UnknownGroupError):
        metadata.report("m", 1)
    with pytest.raises(GroupChangedError):
        metadata.join("m", "no")
    with pytest.raises(InvalidRequestError):
        metadata.join("m")
    epoch = metadata.join("m", "s")
    with pytest.raises(GroupChangedError, match="already"):
        metadata.join("m", "s")
    with pytest.raises(GroupChangedError, match="not a member"):
        metadata.do(LeaveGroup(group="g", member="n"))
    with pytest.raises(GroupChangedError):
        metadata.do(LeaveGroup(group="g", member="m", epoch=epoch - 1))
    with pytest.raises(GroupChangedError):
        metadata.report("m", epoch - 1)
    with pytest.raises(GroupChangedError):
        metadata.report("m", epoch, coordinator=B)
    metadata.do(LeaveGroup(group="g", member="m", epoch=epoch))


def test_more_than_half_of_the_members_replace_a_coordinator() -> None:
    """One of three is too few, also if it reports twice; a change of members clears the reports."""
    metadata = Metadata("s")
    living = {A: _broker(fenced=False), B: _broker(fenced=False)}
    metadata.state = replace(metadata.state, brokers=living)
    epoch = [metadata.join(member, "s") for member in "mno"][-1]
    metadata.report("m", epoch)
    metadata.report("m", epoch)
    assert metadata.state.groups["g"].coordinator == A
    epoch = metadata.join("p", "s")
    metadata.report("n", epoch)
    metadata.report("o", epoch)
    assert metadata.state.groups["g"].coordinator == A
    metadata.report("p", epoch)
    changed = metadata.state.groups["g"]
    assert (changed.coordinator, changed.reports) == (B, ())
    assert changed.epoch > epoch


def test_a_fenced_coordinator_is_replaced_at_the_first_report() -> None:
    """No majority of reports is needed, because the controllers do not hear it either."""
    metadata = Metadata("s")
    epoch = [metadata.join(member, "s") for member in "mno"][-1]
    metadata.state = replace(metadata.state, brokers={A: _broker(fenced=True)})
    assert metadata.report("m", epoch)["coordinator"] == B


def test_a_deleted_stream_leaves_cursors_and_groups() -> None:
    """Members stay, without it, at another epoch; its positions are gone, others stay."""
    metadata = Metadata("s", "t")
    metadata.set("c", "s", 0, 1)
    metadata.set("c", "t", 0, 2)
    metadata.set("d", "s", 3, 1)
    epoch = metadata.join("m", "s", "t")
    gone = metadata.state.streams["s"]
    metadata.do(DeleteStream(name="s", expected_uuid=gone.uuid))
    assert metadata.state.cursors == {"c": {cursor_key("t", 0): 2}}
    assert metadata.state.groups["g"].members == {"m": ("t",)}
    assert metadata.state.groups["g"].epoch > epoch


def test_older_levels_know_none_of_it() -> None:
    """The commands are refused, and the state's text is what an older build writes."""
    metadata = Metadata("s")
    metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_LIFTBRIDGE - 1)
    with pytest.raises(FeatureLevelError):
        metadata.set("c", "s", 0, 1)
    text = metadata.state.to_json()
    assert not any(f'"{name}"' in text for name in ("cursors", "groups", "group_epoch"))


@each_of(seeds(50))
def test_random_lives_keep_the_rules(seed: int) -> None:
    """Weights are right, states survive their text, epochs of a group only grow."""
    chance = random.Random(seed)
    metadata, newest = Metadata("s", "t"), 0
    for _ in range(60):
        member = chance.choice("mno")
        commands: list[Command] = [
            JoinGroup(
                group=chance.choice("gh"), member=member, streams=tuple(chance.choices("st", k=2)),
                coordinator=A,
            ),
            LeaveGroup(group=chance.choice("gh"), member=member),
            SetCursors(
                writes=(
                    CursorWrite(
                        cursor_id=chance.choice("cd"), stream=chance.choice("stu"),
                        partition=chance.randint(0, 2), offset=chance.randint(-1, 9),
                    ),
                )
            ),
            ReportCoordinator(
                group="g", member=member, coordinator=A, epoch=metadata.state.group_epoch,
                candidate=B,
            ),
        ]  # fmt: skip
        before = metadata.state
        try:
            metadata.do(chance.choice(commands))
        except (InvalidRequestError, GroupChangedError):
            assert metadata.state is before
        epochs = [one.epoch for one in metadata.state.groups.values()]
        assert max(epochs, default=0) <= metadata.state.group_epoch
        assert metadata.state.group_epoch >= newest
        newest = metadata.state.group_epoch


def _broker(*, fenced: bool) -> Any:
    return BrokerState(epoch=BrokerEpoch(1), fenced=fenced)
