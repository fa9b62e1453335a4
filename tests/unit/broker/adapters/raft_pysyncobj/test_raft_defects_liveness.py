"""Rows L1 to L8 of docs/raft.md: where pysyncobj gets stuck as shipped, and ours do not.

Each test first shows it in the library's own classes, then that a member of ours goes on: our own
Raft, and pysyncobj with its corrections. L6 and L7 are about sockets; they are in
tests/integration/broker/test_raft_defects_sockets.py.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.core.raft.events import Propose, Save, SnapshotMade
from broker.core.raft.member import Role
from broker.model.raft_messages import AppendReply, Chunk, Message, PreVote, Vote
from simkit.raft import pysyncobj_shipped as shipped
from simkit.raft.groups import CORES
from simkit.raft.pysyncobj_shipped import Shipped
from simkit.raft.rig import A, B, C, MemberRig, append, entries, proposal

ROUNDS = 200


@pytest.fixture
def clock() -> Iterator[shipped.Clock]:
    """Let the shipped library's time stand still."""
    with shipped.standing_clock() as found:
        yield found


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> Any:
    """Return each implementation in turn."""
    return CORES[request.param]


# ---------------------------------------------------------------------------- L1


def test_l1_a_tail_that_conflicts_is_repaired(core: Any, clock: shipped.Clock) -> None:
    """A follower whose tail is another leader's comes back, also under steady traffic."""
    leader, follower = Shipped("abc"), Shipped("ba")
    start = shipped.rows(2, 10, 1)
    for one in (leader, follower):
        one.get("c", shipped.append(1, (1, 0), start))
    follower.get("c", shipped.append(2, (10, 1), shipped.rows(11, 40, 2)))
    leader.get("c", shipped.append(3, (10, 1), shipped.rows(11, 40, 3)))
    leader.lead(clock, "c")
    for _ in range(ROUNDS):  # two messages to the follower before its answers arrive
        clock.now += 0.11
        leader.add("more")
        said = _to(leader, "b") + _to(leader, "b")
        for message in said:
            for answer in follower.get("a", message):
                leader.get("b", answer)
    assert follower.log[20] != leader.log[20], "the library's follower was repaired"

    first = MemberRig(core, append_bytes_max=200)
    first.get(C, append(1, (0, 0), entries(1, 10, 1)))
    first.get(C, append(3, (10, 1), entries(11, 40, 3)))
    second = MemberRig(core, append_bytes_max=200)
    second.get(C, append(1, (0, 0), entries(1, 10, 1)))
    second.get(C, append(2, (10, 1), entries(11, 40, 2)))
    term = first.lead()
    waiting: deque[Message] = deque()
    for number in range(ROUNDS):
        first.step(Propose(proposal(number)))
        waiting += first.said_to(B)
        first.wait(first.config.heartbeat_ms + 1)
        waiting += first.said_to(B)
        for _ in range(len(waiting)):  # deliver the message to B, which is a follower here
            for reply in second.get(B, waiting.popleft()):
                first.get(B, reply)
        if second.member.log.term_at(second.last_index) == term:
            break
    assert second.member.log.term_at(11) == 3
    assert second.member.log.term_at(41) == term


def _to(member: Shipped, name: str) -> list[dict[str, Any]]:
    """Let a shipped member send what is due; return what is for one other."""
    before = len(member.recorder.sent)
    member._SyncObj__newAppendEntriesTime = 0
    member.tick()
    return [message for target, message in member.recorder.sent[before:] if target == name]


# ---------------------------------------------------------------------------- L2, L3


def test_l2_a_member_that_comes_back_disturbs_nobody(core: Any, clock: shipped.Clock) -> None:
    """A member that was cut off neither deposes a working leader nor gets votes."""
    wants = {"type": "request_vote", "term": 6, "last_log_index": 90, "last_log_term": 5}
    library = Shipped()
    library.lead(clock, "b")
    library.get("c", wants)
    assert library.state == shipped.FOLLOWER, "one message from outside deposed the leader"
    library = Shipped()
    library.get("b", shipped.append(1, (1, 0), []))
    assert library.get("c", wants)[-1]["type"] == "response_vote", (
        "a vote was given although the leader sends heartbeats"
    )
    lonely = Shipped()
    for _ in range(5):
        clock.now += 10
        lonely.tick()
    assert lonely.term == 5, "alone, it made five terms"

    ours = MemberRig(core)
    term = ours.lead()
    for message in (PreVote(6, 90, 5), Vote(6, 90, 5, transfer=False)):
        said = ours.get(C, message)
        assert all(not getattr(one, "granted", False) for one in said)
    assert (ours.member.role, ours.member.term) == (Role.LEADER, term)
    ours = MemberRig(core)
    ours.get(B, append(1, (0, 0)))
    for message in (PreVote(6, 90, 5), Vote(6, 90, 5, transfer=False)):
        said = ours.get(C, message)
        assert all(not getattr(one, "granted", False) for one in said)
    assert (ours.member.term, ours.member.leader) == (1, B)
    ours = MemberRig(core)
    for _ in range(50):
        said = ours.wait(ours.config.election_ms_max + 1)
        assert {type(one) for one in said} <= {PreVote}
    assert ours.member.term == 0, "alone, it makes no term"


def test_l3_a_leader_that_nobody_answers_gives_way(core: Any, clock: shipped.Clock) -> None:
    """It steps down within an election timeout, not after half a minute."""
    library = Shipped()
    library.lead(clock, "b")
    clock.now += 29
    library.tick()
    assert library.state == shipped.LEADER, "it gave way before thirty seconds"

    ours = MemberRig(core)
    ours.lead()
    ours.wait(ours.config.election_ms_min + 1)
    assert ours.member.role is not Role.LEADER


# ---------------------------------------------------------------------------- L4, L5


def test_l4_a_snapshot_takes_one_message_at_a_time(
    core: Any, clock: shipped.Clock, tmp_path: Path
) -> None:
    """A leader sends a chunk and waits for its answer; it does not spin while there is none."""
    library = Shipped(folder=tmp_path)
    library.lead(clock, "b", "c")
    for value in range(20):
        library.add(value)
    library.tick()
    end = library.log[-1][1] + 1
    library.get("b", {"type": "next_node_idx", "reset": False, "success": True,
                      "next_node_idx": end})  # fmt: skip
    library.tick()
    library._SyncObj__deleteEntriesTo(15)  # c needs a snapshot now
    library.get("c", {"type": "next_node_idx", "reset": True, "success": False,
                      "next_node_idx": 2})  # fmt: skip
    library._SyncObj__serializer._Serializer__pid = 4711  # a snapshot is being written
    clock.per_look = 0.001
    library._SyncObj__newAppendEntriesTime = 0
    empty = [one for one in library.tick() if one.get("serialized", 1) is None]
    assert len(empty) > 50, "as many empty messages as fit into a heartbeat's time"

    ours = MemberRig(core, chunk_bytes_max=16)
    term = ours.lead()
    for sequence in range(20):
        ours.step(Propose(proposal(sequence)))
    ours.get(B, AppendReply(term, True, ours.last_index, 0, 0, 1))
    ours.wait(1)
    assert ours.member.applied == ours.last_index
    ours.step(SnapshotMade(ours.last_index, ours.take_snapshot()))
    ours.effects.clear()
    ours.get(C, AppendReply(term, False, ours.last_index - 1, 0, 0, 1 << 30))
    for _ in range(30):
        ours.wait(1)
    for message in ours.said_to(C):
        if isinstance(message, Chunk):
            assert len(message.data) <= 16
    beats = 5
    for _ in range(beats):
        ours.wait(ours.config.heartbeat_ms + 1)
        ours.get(B, AppendReply(term, True, ours.last_index, 0, 0, 1 << 30))
    chunks = [one for one in ours.said_to(C) if isinstance(one, Chunk)]
    assert 0 < len(chunks) <= 2 * beats
    assert all(not one.data for one in chunks), "no second piece before the first is answered"


def test_l5_a_snapshot_needs_no_second_process(
    core: Any, clock: shipped.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of a process with threads may hang for ever; ours has no child."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", lambda: 4711)  # a child that
        patch.setattr(os, "waitpid", lambda *_: (0, 0))  # never ends
        library = Shipped("a", folder=tmp_path, useFork=True, logCompactionMinEntries=10)
        library.lead(clock)
        for value in range(500):
            library.add(value)
            library.tick()
        assert len(library.log) > 500, "nothing is compacted any more"
        library.close()

    def forbidden() -> int:
        raise AssertionError("a second process")

    monkeypatch.setattr(os, "fork", forbidden)
    ours = MemberRig(core, members=(A,))
    ours.wait(1)
    for sequence in range(500):
        ours.step(Propose(proposal(sequence)))
    ours.step(SnapshotMade(ours.member.applied, ours.take_snapshot()))
    assert len(ours.member.log.image().entries) == 0
    ours.restart(power=True)
    ours.wait(1)
    assert ours.restored[0].id.index == 501


# ---------------------------------------------------------------------------- L8


def test_l8_no_boot_clock_decides_when_to_compact(
    core: Any, clock: shipped.Clock, tmp_path: Path
) -> None:
    """As shipped, members are to take turns and do not; ours compact on request."""
    compacted = []
    for name, since_boot in (("a", 0.0), ("b", 150.0)):  # the same moment on two machines
        (tmp_path / name).mkdir()
        clock.now = 3000.0 + since_boot
        library = Shipped(
            name + "".join({"a", "b"} - {name}), folder=tmp_path / name,
            logCompactionSplit=True, logCompactionMinEntries=10, logCompactionMinTime=300,
        )  # fmt: skip
        other = "b" if name == "a" else "a"
        library.get(other, shipped.append(1, (1, 0), shipped.rows(2, 40, 1), commit=40))
        library.tick()
        library.tick()
        if (tmp_path / name / "dump").exists():
            compacted.append(name)
    assert compacted == ["a", "b"], "both at once, although their windows should never meet"

    for since_boot_ms in (0, 150_000, 10**12):
        ours = MemberRig(core)
        ours.now_ms = since_boot_ms
        ours.get(B, append(1, (0, 0), entries(1, 40, 1), commit=40))
        for _ in range(10):
            ours.wait(100_000)
        assert all(one.snapshot is None for one in ours.effects if isinstance(one, Save))
        ours.step(SnapshotMade(40, ours.take_snapshot()))
        assert ours.member.log.base_index == 40
