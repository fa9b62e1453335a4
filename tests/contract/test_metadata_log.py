"""Every metadata log keeps the same promises: of a broker alone, and Raft on one or three nodes.

Raft is our own, or pysyncobj with its corrections. A group of three runs over real TLS connections
on the loopback.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.core.metadata.commands import CreateStream, DeleteStream, RegisterBroker
from broker.errors import HeadwaterError, InvalidRequestError, StreamExistsError, UnknownStreamError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from simkit.raft.groups import CORES, LoneLogs, MetadataLogs, RaftGroup

pytestmark = pytest.mark.slow

BROKER = BrokerId("b1")
WAIT_MS = 60_000  # an election after a restart on a busy machine


@pytest.fixture(params=["local", "own-1", "own-3", "pysyncobj-1", "pysyncobj-3"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataLogs]:
    """Return an implementation that can be restarted, with all of its members."""
    kind, _, size = request.param.partition("-")
    found: MetadataLogs
    if kind == "local":
        found = LoneLogs(tmp_path)
    else:
        found = RaftGroup(tmp_path, size=int(size), core=CORES[kind])
    yield found
    found.close()


def _uuid(number: int) -> StreamUuid:
    return StreamUuid(f"00000000-0000-4000-8000-{number:012d}")


def _stream(number: int, *, partitions: int = 1) -> Stream:
    config = StreamConfig(subject=f"s{number}", partitions=partitions)
    return Stream(
        name=f"s{number}", uuid=_uuid(number), config=config, created_us=1, table_name=f"s{number}"
    )


def _create(number: int, *, partitions: int = 1) -> CreateStream:
    return CreateStream(stream=_stream(number, partitions=partitions), leader=BROKER)


def test_a_proposed_command_is_applied_and_answered(logs: MetadataLogs) -> None:
    """Its reply comes back, and the caller finds it in the state of the member that it asked."""
    for number, log in enumerate(logs.members()):
        assert log.propose(_create(number), timeout_ms=WAIT_MS)["created"] is True
        assert f"s{number}" in log.state.streams


def test_a_rejection_is_the_typed_error_and_changes_nothing(logs: MetadataLogs) -> None:
    """The state machine refuses; the caller gets its error, with facts, from any member."""
    first, last = logs.members()[0], logs.members()[-1]
    first.propose(_create(1), timeout_ms=WAIT_MS)
    with pytest.raises(StreamExistsError) as refused:
        last.propose(_create(1, partitions=2), timeout_ms=WAIT_MS)
    assert refused.value.stream == "s1"
    with pytest.raises(UnknownStreamError):
        last.propose(DeleteStream(name="no", expected_uuid=_uuid(9)), timeout_ms=WAIT_MS)
    assert list(last.state.streams) == ["s1"]


def test_a_command_that_is_too_large_is_refused_at_the_door(logs: MetadataLogs) -> None:
    """It never reaches the log, and the log takes later commands."""
    log = logs.members()[0]
    with pytest.raises(InvalidRequestError):
        log.propose(RegisterBroker(broker=BrokerId("b" * (2 << 20))))
    log.propose(_create(1), timeout_ms=WAIT_MS)
    assert list(log.state.streams) == ["s1"]


def test_what_does_not_wait_is_answered_once_it_is_applied(logs: MetadataLogs) -> None:
    """None comes with the change in the state; a refusal comes as the error; so does a barrier."""
    for number, log in enumerate(logs.members()):
        heard: queue.SimpleQueue[HeadwaterError | None] = queue.SimpleQueue()
        log.propose_soon(_create(number), heard.put, timeout_ms=WAIT_MS)
        assert heard.get(timeout=2 * WAIT_MS / 1000) is None
        assert f"s{number}" in log.state.streams
        log.propose_soon(_create(number, partitions=2), heard.put, timeout_ms=WAIT_MS)
        assert isinstance(heard.get(timeout=2 * WAIT_MS / 1000), StreamExistsError)
        log.barrier_soon(heard.put, timeout_ms=WAIT_MS)
        assert heard.get(timeout=2 * WAIT_MS / 1000) is None
        assert log.applied_index > number


def test_answered_commands_survive_a_restart_of_all(logs: MetadataLogs) -> None:
    """Everything answered is there afterwards, in the same order."""
    for number in range(20):
        logs.members()[number % len(logs.members())].propose(_create(number), timeout_ms=WAIT_MS)
    logs.members()[0].barrier(timeout_ms=WAIT_MS)
    before = logs.members()[0].state
    logs.restart()
    for log in logs.members():
        log.barrier(timeout_ms=WAIT_MS)
        assert set(log.state.streams) == {f"s{number}" for number in range(20)}
    assert logs.members()[0].state.to_json() == before.to_json()


def test_a_barrier_shows_what_any_member_has_answered(logs: MetadataLogs) -> None:
    """After a barrier the caller's member knows every command that any member answered before."""
    members = logs.members()
    for number in range(10):
        members[number % len(members)].propose(_create(number), timeout_ms=WAIT_MS)
        reader = members[(number + 1) % len(members)]
        reader.barrier(timeout_ms=WAIT_MS)
        assert f"s{number}" in reader.state.streams


def test_many_callers_at_once_each_get_their_own_answer(logs: MetadataLogs) -> None:
    """Registrations count up by one each, through whichever member."""
    members = logs.members()

    def register(number: int) -> int:
        command = RegisterBroker(broker=BROKER)
        return int(
            members[number % len(members)].propose(command, timeout_ms=WAIT_MS)["broker_epoch"]
        )

    with ThreadPoolExecutor(8) as callers:
        epochs = sorted(callers.map(register, range(60)))
    assert epochs == list(range(1, 61))


def test_a_subscriber_sees_every_change_in_order(logs: MetadataLogs) -> None:
    """Indexes grow, and the newest state is reported in the end, on every member."""
    seen: dict[int, list[tuple[int, int]]] = {}
    complete = [threading.Event() for _ in logs.members()]
    for at, log in enumerate(logs.members()):
        seen[at] = []

        def note(index: int, state: object, at: int = at) -> None:
            seen[at].append((index, len(state.streams)))  # type: ignore[attr-defined]
            if len(state.streams) == 5:  # type: ignore[attr-defined]
                complete[at].set()

        log.subscribe(note)
    for number in range(5):
        logs.members()[0].propose(_create(number), timeout_ms=WAIT_MS)
    for event in complete:
        assert event.wait(WAIT_MS / 1000)
    for reports in seen.values():
        assert reports == sorted(reports)
