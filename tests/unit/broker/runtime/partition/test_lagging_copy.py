"""A replica that is behind learns every deletion, however far key compaction has gone elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from broker.runtime.partition import replica_shell
from simkit.brokers.replica_trio import A, B, N, ReplicaTrio

KEY, VALUE = b"K", b"v1"


@pytest.fixture(autouse=True)
def small_answers() -> Iterator[None]:
    """A copy of a few segments takes several fetches."""
    with patch.object(replica_shell, "FETCH_BYTES_MAX", 2000):
        yield


def fill(trio: ReplicaTrio, tag: bytes, count: int = 30) -> None:
    """Publish about three segments of other keys."""
    for at in range(count):
        trio.put((b"other-%d" % (at % 3), tag + b"%d" % at * 20), (None, b"no key" * 10))


def behind() -> ReplicaTrio:
    """Return replicas of which ``n`` has the value of a key that was deleted since."""
    trio = ReplicaTrio()
    trio.put((KEY, VALUE))
    fill(trio, b"x")
    trio.settle()
    trio.cut = {N}
    fill(trio, b"y")
    trio.put((KEY, None))
    fill(trio, b"z")
    trio.settle(lambda: trio.view.isr == {A, B} and trio.is_settled())
    return trio


def test_a_replica_that_was_away_forgets_a_key_whose_tombstone_is_gone() -> None:
    """It copies the log from the beginning; then it leads, and readers see no deleted key."""
    trio = behind()
    assert trio.state(N)[KEY] == VALUE
    trio.clock.advance(us=2 * 86_400_000_000)
    trio.compact(A)
    trio.cut = set()
    trio.settle()
    assert trio.begun_anew == [N]
    trio.lead(N)
    trio.compact(N)
    trio.settle()
    assert KEY not in trio.state(N)
    assert trio.state(N) == trio.state(A) == trio.state(B)
    assert trio.begun_anew == [N]


def test_a_replica_that_missed_no_pass_goes_on_where_it_was() -> None:
    """Also if the leader compacts what it has already, and after a restart."""
    trio = behind()
    end = trio.rigs[N].log.log_end
    trio.cut = set()
    for _ in range(400):
        trio.round(messages=1)
        trio.compact(A)
        if trio.rigs[N].log.log_end > end:
            break
    trio.restart(N)
    trio.settle()
    assert trio.begun_anew == []
    assert trio.state(N) == trio.state(A)
    trio.compact(A)
    assert trio.leader.driver.reads.whole_start > end


def test_a_pass_that_wants_to_go_on_lets_a_copy_end_first() -> None:
    """Passes between all the messages of a copy neither spoil it nor make it begin again."""
    trio = behind()
    trio.clock.advance(us=120_000_000)
    trio.compact(A)
    trio.cut = set()
    passes = 0
    while N not in trio.view.isr:
        trio.round(messages=4)
        if passes < 40:
            trio.put((b"other-1", b"w" * 300))
        trio.compact(A)
        passes += 1
        assert passes < 300, "the copy does not end"
    trio.settle()
    assert trio.begun_anew == [N]
    assert KEY not in trio.state(N)


def test_a_copy_that_stands_still_holds_no_pass_up() -> None:
    """A replica that was away for minutes copies from the beginning, if a pass went on."""
    trio = behind()
    end = trio.rigs[N].log.log_end
    trio.compact(A)
    assert trio.leader.driver.reads.whole_start <= end, "the copy may go on"
    trio.clock.advance(us=61_000_000)
    trio.compact(A)
    assert trio.leader.driver.reads.whole_start > end
    trio.cut = set()
    trio.settle()
    assert trio.begun_anew == [N]
    assert KEY not in trio.state(N)


def test_a_copy_that_goes_on_during_a_pass_stops_the_pass() -> None:
    """The pass began while the replica was away; it has not yet come to what the copy lacks."""
    trio = behind()
    trio.clock.advance(us=120_000_000)
    compaction = trio.rigs[A].driver.compaction
    compaction.ask("t")
    while not trio.rigs[A].driver.counters.compacted_segments:
        trio.step(A)
    trio.cut = set()
    ends = {trio.rigs[N].log.log_end}
    while len(ends) < 3:  # the second answer shows that its leader knows of the first one
        trio.round(messages=1)
        ends.add(trio.rigs[N].log.log_end)
    while compaction.has_begun:
        trio.step(A)
    assert trio.leader.driver.reads.whole_start <= trio.rigs[N].log.log_end
    trio.settle()
    assert trio.begun_anew == []
    assert KEY not in trio.state(N)


def test_a_replica_shows_readers_no_more_than_it_has_after_it_began_anew() -> None:
    """Its high watermark goes back with its log."""
    trio = behind()
    trio.clock.advance(us=120_000_000)
    trio.compact(A)
    trio.cut = set()
    reads = trio.rigs[N].driver.reads
    while not trio.begun_anew:
        trio.round(messages=1)
    assert reads.log_end == 0
    while reads.log_end < trio.leader.driver.reads.log_end:
        assert reads.high_watermark <= reads.log_end
        trio.round(messages=1)


@pytest.mark.parametrize("seed", range(10))
def test_all_replicas_agree_on_the_newest_record_of_each_key(seed: int) -> None:
    """Whatever the order of publishes, passes, cuts, restarts and elections is."""
    rng, trio = random.Random(seed), ReplicaTrio()
    newest: dict[bytes, bytes | None] = {}
    for at in range(60):
        match rng.randrange(9):
            case 0 | 1 | 2:
                for _ in range(rng.randrange(12)):
                    key, value = b"k%d" % rng.randrange(30), b"%d" % at * rng.randrange(1, 80)
                    newest[key] = None if rng.random() < 0.4 else value
                    trio.put((key, newest[key]), (None, b"no key" * 20))
            case 3:
                trio.compact(rng.choice((A, B, N)))
            case 4:
                trio.cut = rng.choice((set(), {N}, trio.cut))
            case 5 if trio.view.leader != N:
                trio.restart(N)
            case 6:
                trio.settle(trio.is_settled)
                trio.lead(rng.choice(sorted(trio.view.isr - trio.cut) or [trio.leader_name]))
            case 7:
                trio.clock.advance(us=rng.choice((2_000_000, 20_000_000, 70_000_000)))
            case _:
                for _ in range(rng.randrange(30)):
                    trio.round(messages=rng.randrange(1, 4))
                    trio.step(rng.choice((A, B, N)))
    trio.cut = set()
    trio.settle()
    wanted = {key: value for key, value in newest.items() if value is not None}
    for one in (A, B, N):
        assert trio.state(one) == wanted, one
