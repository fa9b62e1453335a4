"""What a stream may have of the metadata: cursors and positions of groups."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    CommitPositions,
    CursorWrite,
    DeleteGroup,
    DeleteStream,
    ResetPositions,
    SetCursors,
)
from broker.core.metadata.group_state import GroupPosition, cursor_key
from broker.core.metadata.shares import PLACES_OF_PARTITION_MAX, Shares
from broker.core.metadata.state import MetadataState
from broker.errors import MetadataFullError
from broker.model.groups import PositionReset, partition_key
from broker.model.offsets import Offset
from cases import seeds
from simkit.groups.metadata import GroupMetadata


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
