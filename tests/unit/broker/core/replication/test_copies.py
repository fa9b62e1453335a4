"""Which followers a leader of a compacted log has copy it again, and what its passes wait for."""

from __future__ import annotations

from broker.core.replication.copies import STALLED_MS, FollowerCopies
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_messages import FetchRequest

B, C = BrokerId("b"), BrokerId("c")
SPARSE_END, LOG_END = Offset(100), Offset(200)


class Copies:
    """The copies of a leader whose log is compacted below 100, and ends at 200."""

    def __init__(self) -> None:
        self.sparse_end = SPARSE_END
        self.copies = FollowerCopies(lambda: self.sparse_end)
        self.request_id = 1

    def lacks(
        self, at: int, *, now_ms: int = 0, late: bool = False, follower: BrokerId = B
    ) -> bool:
        """Tell whether a follower that fetches at this offset may miss tombstones."""
        self.request_id += 1
        request = FetchRequest(
            follower=follower,
            broker_epoch=BrokerEpoch(1),
            leader_epoch=LeaderEpoch(3),
            request_id=1 if late else self.request_id,
            fetch_from=Offset(at),
            last_epoch=LeaderEpoch(1),
            synced_end=Offset(at),
        )
        self.copies.fetched(request, log_end=LOG_END, now_ms=now_ms)
        return self.copies.lacks_tombstones(request)

    def floor(self, now_ms: int = 0) -> int:
        """Return the offset above which no pass goes."""
        return self.copies.floor((B, C), now_ms)


def test_only_an_empty_log_or_one_above_the_compacted_range_is_known() -> None:
    """Any other may have records whose tombstones are gone."""
    assert Copies().lacks(1)
    assert Copies().lacks(99)
    assert not Copies().lacks(100)
    assert not Copies().lacks(0)


def test_a_copy_from_the_beginning_goes_on() -> None:
    """Through the compacted range, whatever jump retention makes it take."""
    copies = Copies()
    assert [copies.lacks(at) for at in (0, 40, 40, 99)] == [False] * 4
    assert copies.floor() == 99


def test_a_log_that_became_shorter_is_not_known_any_more() -> None:
    """What was compacted meanwhile was above its end."""
    copies = Copies()
    assert not copies.lacks(0)
    assert not copies.lacks(60)
    assert copies.lacks(59)
    assert copies.floor() == OFFSET_MAX, "it is to begin anew"
    assert not copies.lacks(0)


def test_a_late_request_says_nothing() -> None:
    """It describes a log that the follower may have replaced since."""
    copies = Copies()
    copies.lacks(0)
    copies.lacks(70, late=True)
    assert copies.floor() == 0


def test_the_shortest_copy_of_a_replica_counts() -> None:
    """A broker that is no replica any more holds nothing up."""
    copies = Copies()
    assert copies.floor() == OFFSET_MAX
    copies.lacks(150)
    copies.lacks(120, follower=C)
    copies.lacks(0, follower=BrokerId("removed"))
    assert copies.floor() == 120


def test_a_copy_that_stands_still_holds_passes_up_for_a_minute_only() -> None:
    """Repeated fetches are no progress; a complete copy needs none."""
    copies = Copies()
    copies.lacks(0)
    copies.lacks(50, now_ms=10)
    copies.lacks(50, now_ms=STALLED_MS)
    assert copies.floor(STALLED_MS + 9) == 50
    assert copies.floor(STALLED_MS + 10) == OFFSET_MAX
    copies.lacks(LOG_END, now_ms=20, follower=C)
    copies.lacks(LOG_END, now_ms=STALLED_MS, follower=C)
    assert copies.floor(STALLED_MS + 10) == LOG_END


def test_a_pass_above_a_copy_ends_it() -> None:
    """Not a pass up to its end."""
    copies = Copies()
    copies.lacks(110)
    copies.sparse_end = Offset(120)
    copies.copies.compacted(Offset(110))
    assert not copies.lacks(110)
    copies.copies.compacted(Offset(111))
    assert copies.lacks(110)
