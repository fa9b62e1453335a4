"""Cursors that clients of Liftbridge's groups set late: of streams that are gone or made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.core.metadata.commands import (
    CreateStream,
    CursorWrite,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    SetCursors,
)
from broker.core.metadata.group_positions import cursor_of
from broker.core.metadata.state import FEATURE_LEVEL_FENCED, FEATURE_LEVEL_RECREATED
from broker.errors import UnknownPartitionError, UnknownStreamError
from simkit.groups.metadata import A, GroupMetadata, stream_of


def made_again(metadata: GroupMetadata, *, late: Callable[[], None] | None = None) -> None:
    """Delete stream s and create it again; call ``late`` between."""
    gone = metadata.state.streams["s"]
    metadata.do(DeleteStream(name="s", expected_uuid=gone.uuid))
    if late is not None:
        late()
    metadata.do(CreateStream(stream=stream_of("s", 9, 1), leader=A))


def at_level(level: int, **streams: int) -> GroupMetadata:
    """Return the metadata of a cluster at a feature level."""
    metadata = GroupMetadata(**streams)
    metadata.state = replace(metadata.state, feature_level=level)
    return metadata


def test_a_late_cursor_of_a_deleted_stream_is_not_a_position_of_the_next_one() -> None:
    """A group's is refused while no stream has the name; a cursor of other clients is stored."""
    metadata = at_level(FEATURE_LEVEL_RECREATED, s=1)
    metadata.set_cursor(41)

    def late() -> None:
        before = metadata.state
        with pytest.raises(UnknownStreamError, match="'s'"):
            metadata.set_cursor(41)
        assert metadata.state is before
        write = CursorWrite(cursor_id="mine", stream="s", partition=0, offset=41)
        metadata.do(SetCursors(writes=(write,)))

    made_again(metadata, late=late)
    assert metadata.position(0) is None
    assert cursor_of(metadata.state, "__group:g", "s", 0) is None
    assert cursor_of(metadata.state, "mine", "s", 0) == 41


def test_a_cursor_in_a_partition_that_is_not_there_waits_for_none() -> None:
    """The former stream of the name may have had more; the present one may get them."""
    metadata = at_level(FEATURE_LEVEL_RECREATED, s=1)
    write = CursorWrite(cursor_id="__group:g", stream="s", partition=1, offset=41)
    with pytest.raises(UnknownPartitionError):
        metadata.do(SetCursors(writes=(write,)))


def test_a_new_stream_has_no_cursors_that_groups_set_at_an_older_level() -> None:
    """Others' cursors stay, and groups' cursors in other streams."""
    metadata = at_level(FEATURE_LEVEL_FENCED, s=1)

    def late() -> None:
        metadata.set_cursor(41)
        metadata.set_cursor(5, stream="elsewhere")
        write = CursorWrite(cursor_id="mine", stream="s", partition=0, offset=7)
        metadata.do(SetCursors(writes=(write,)))
        metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_RECREATED)

    made_again(metadata, late=late)
    assert metadata.position(0) is None
    assert metadata.state.cursors == {"__group:g": {"0,elsewhere": 5}, "mine": {"0,s": 7}}


def test_a_cursor_in_a_stream_that_no_member_reads_is_late() -> None:
    """The stream was made again; a member that reads the new one makes cursors count again."""
    metadata = at_level(FEATURE_LEVEL_RECREATED, s=1, t=1)
    metadata.do(JoinGroup(group="g", member="m", streams=("s", "t"), coordinator=A))
    made_again(metadata)
    before = metadata.state
    metadata.set_cursor(41)
    assert metadata.state is before
    metadata.set_cursor(3, stream="t")
    assert cursor_of(metadata.state, "__group:g", "t", 0) == 3
    metadata.do(JoinGroup(group="g", member="n", streams=("s",), coordinator=A))
    metadata.set_cursor(2)
    assert metadata.position(0) == 3
    for member in "mn":
        metadata.do(LeaveGroup(group="g", member=member))
    metadata.set_cursor(0, stream="t")
    assert cursor_of(metadata.state, "__group:g", "t", 0) == 0, "nobody reads: it is a choice"


def test_cursors_in_a_journal_of_an_older_build_mean_what_they_did() -> None:
    """Below the feature level a late one waits for its stream; all builds have one state."""
    metadata = at_level(FEATURE_LEVEL_FENCED, s=1, t=1)
    made_again(metadata, late=lambda: metadata.set_cursor(41))
    assert metadata.position(0) == 42
    metadata.do(JoinGroup(group="g", member="m", streams=("t",), coordinator=A))
    metadata.set_cursor(50)
    assert metadata.position(0) == 51
    write = CursorWrite(cursor_id="__group:g", stream="s", partition=7, offset=1)
    metadata.do(SetCursors(writes=(write,)))
    assert metadata.state.positions["g"][metadata.key("s", 7)].offset == 2
