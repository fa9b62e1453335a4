"""Members as processes, killed with SIGKILL: no answered command is lost or applied twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from simkit.raft.groups import CORES
from simkit.raft.member_process import ProcessGroup

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(params=CORES)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessGroup]:
    """Return three processes that make snapshots all the time."""
    found = ProcessGroup(tmp_path, request.param)
    yield found
    found.close()


def _register(group: ProcessGroup, count: int) -> list[int]:
    members = list(group.alive.values())
    return [int(members[number % len(members)].ask("register")) for number in range(count)]


def test_a_killed_leader_takes_no_answer_with_it(group: ProcessGroup) -> None:
    """Two of three go on; the killed one catches up when it is back."""
    assert _register(group, 60) == list(range(1, 61))
    leader = next(iter(group.alive.values())).ask("leader")
    group.kill(leader)
    assert _register(group, 60) == list(range(61, 121))
    group.start(leader)
    assert group.alive[leader].ask("epoch") == "120"


def test_a_member_that_was_asked_after_its_death_is_put_away(group: ProcessGroup) -> None:
    """Its last command is neither answered nor an error, and its pipes are closed."""
    name, *others = group.names
    member = group.alive[name]
    member.signal()
    while member.ask("leader"):  # until the signal has reached the process
        pass
    assert member.ask("leader") == ""
    group.kill(name)
    assert set(group.alive) == set(others)


def test_killed_all_at_once_in_the_middle_of_work(group: ProcessGroup) -> None:
    """Answered commands are there again; those under way took effect once, or not at all."""
    answered: dict[str, list[int]] = {name: [] for name in group.names}
    busy = {name: threading.Event() for name in group.names}

    def work(name: str) -> None:
        member = group.alive[name]
        while (answer := member.ask("register")).isdigit():
            answered[name].append(int(answer))
            if len(answered[name]) == 20:
                busy[name].set()

    workers = [threading.Thread(target=work, args=(name,)) for name in group.names]
    for worker in workers:
        worker.start()
    for name, event in busy.items():
        assert event.wait(120), f"{name} makes no progress"
    for member in group.alive.values():
        member.signal()
    for worker in workers:
        worker.join()
    group.kill(*group.names)
    group.start(*group.names)
    told = sorted(epoch for epochs in answered.values() for epoch in epochs)
    assert len(set(told)) == len(told), "two callers got one registration"
    found = {name: int(one.ask("epoch")) for name, one in group.alive.items()}
    assert len(set(found.values())) == 1
    newest = found[group.names[0]]
    assert told[-1] <= newest <= told[-1] + len(group.names), "each had one more under way"
    assert _register(group, 3) == [newest + 1, newest + 2, newest + 3]
