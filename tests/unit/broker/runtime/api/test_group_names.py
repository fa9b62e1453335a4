"""Names of groups, members and cursors are printable; an older metadata's others can be deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.codec.flight.actions import decode_body
from broker.codec.flight.protocol import encode_body
from broker.core.metadata.group_commands import CursorWrite, JoinGroup, LeaveGroup, SetCursors
from broker.errors import InvalidRequestError, UnknownGroupError
from broker.model.ids import BrokerId
from broker.model.stream import StreamConfig
from simkit.brokers.memory_broker import MemoryBroker

EVIL = "g-\x1b]0;x\x07"
LONG = "ü" * 200  # more bytes than a name has in Headwater's protocol


@pytest.fixture
def broker() -> MemoryBroker:
    """Give a broker with stream s."""
    made = MemoryBroker()
    made.streams.create("s", StreamConfig(subject="s", tiering=False))
    return made


@pytest.mark.parametrize("group", [EVIL, "a\nb", "", LONG], ids=["escape", "line", "empty", "long"])
def test_a_name_that_headwaters_protocol_refuses_is_refused_to_liftbridges_clients(
    broker: MemoryBroker, group: str
) -> None:
    """As a group, as a member, and in a cursor's id; nothing is stored."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: broker.groups.join(group, "m", ["s"]),
        lambda: broker.groups.join("g", group, ["s"]),
        lambda: broker.cursors.set(f"__group:{group}", "s", 0, 1),
    )
    for call in calls:
        with pytest.raises(InvalidRequestError):
            call()
    if group:
        for stream, cursor in (("s", group), (group, "c")):
            with pytest.raises(InvalidRequestError):
                broker.cursors.set(cursor, stream, 0, 1)
    assert (broker.members.groups(), broker.metadata.state.cursors) == ([], {})


def test_a_cursor_of_no_group_is_no_group_in_an_older_metadata(broker: MemoryBroker) -> None:
    """The list and the guard of Liftbridge's door name groups by the same rule."""
    write = CursorWrite(cursor_id="__group:", stream="s", partition=0, offset=1)
    broker.metadata.propose(SetCursors(writes=(write,)))
    assert list(broker.metadata.state.cursors) == ["__group:"]
    assert broker.members.groups() == []


@pytest.mark.parametrize("group", [EVIL, LONG], ids=["escape", "long"])
def test_a_group_of_an_older_metadata_is_described_and_deleted(
    broker: MemoryBroker, group: str
) -> None:
    """Its name passes the check of the calls that operators need for it."""
    join = JoinGroup(group=group, member=EVIL, streams=("s",), coordinator=BrokerId("memory"))
    broker.metadata.propose(join)
    write = CursorWrite(cursor_id=f"__group:{group}", stream="s", partition=0, offset=1)
    broker.metadata.propose(SetCursors(writes=(write,)))
    broker.metadata.propose(LeaveGroup(group=group, member=EVIL))
    assert broker.members.groups() == [group]
    for action in ("describe_group", "delete_group"):
        assert decode_body(action, encode_body({"group": group})) == {"group": group}
    assert broker.members.describe(group).partitions[0].offset == 2
    broker.members.delete(group)
    assert broker.members.groups() == []
    with pytest.raises(UnknownGroupError):
        broker.members.describe(group)


def test_no_name_that_no_group_can_have_is_proposed(broker: MemoryBroker) -> None:
    """It would stand in the log of every broker. An older group's odd name may be given."""
    long = "\U0001f600" * 257
    calls: tuple[Callable[[], object], ...] = (
        lambda: broker.groups.leave(long, "m"),
        lambda: broker.groups.leave("g", long),
        lambda: broker.groups.report(long, "m", "b", 1),
        lambda: broker.groups.report("g", long, "b", 1),
        lambda: broker.groups.report("g", "m", long, 1),
    )
    for call in calls:
        with pytest.raises(InvalidRequestError, match="at most 256 characters"):
            call()
    with pytest.raises(UnknownGroupError):
        broker.groups.leave(EVIL, "m")
