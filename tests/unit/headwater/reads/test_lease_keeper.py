"""Leases are renewed in time, a lost one is named, and an unneeded one is dropped."""

from __future__ import annotations

from broker.errors import HeadwaterError, UnavailableError, UnknownLeaseError
from broker.model.cut import Lease
from broker.model.ids import LeaseId
from headwater.reads.lease_keeper import LeaseKeeper

LEASE = Lease(lease_id=LeaseId("l"), expires_us=0)
TTL_MS = 60_000  # due every 20 s


class FakeClient:
    """Renews until told to fail; notes every call."""

    def __init__(self) -> None:
        self.renewed = 0
        self.dropped: list[str] = []
        self.error: HeadwaterError | None = None

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Count."""
        assert ttl_ms == TTL_MS
        if self.error is not None:
            raise self.error
        self.renewed += 1
        return Lease(lease_id=lease_id, expires_us=self.renewed)

    def drop_lease(self, lease_id: LeaseId) -> None:
        """Note it."""
        if self.error is not None:
            raise self.error
        self.dropped.append(lease_id)


class Keeper(LeaseKeeper):
    """A keeper whose time a test moves; its own thread sees the same time and finds nothing due."""

    def __init__(self) -> None:
        self.now_s = 100.0
        super().__init__(lambda: self.now_s)

    def _run(self) -> None:
        """Do nothing: the test calls tick."""


def held(client: FakeClient, *, drop_at_end: bool = True, used: list[bool] | None = None) -> Keeper:
    """Return a keeper that holds LEASE."""
    keeper = Keeper()
    keeper.hold(
        LEASE,
        client=client,
        ttl_ms=TTL_MS,
        drop_at_end=drop_at_end,
        what="stream=s",
        in_use=lambda: (used or [True])[-1],
    )
    return keeper


def test_a_lease_is_renewed_three_times_in_its_life() -> None:
    """It is not renewed before it is due, and each time that it is due."""
    client = FakeClient()
    keeper = held(client)
    for second in range(1, 61):
        keeper.now_s = 100.0 + second
        keeper.tick()

    assert client.renewed == 3


def test_an_absent_broker_is_asked_again_soon() -> None:
    """A restart of the broker does not cost the lease."""
    client = FakeClient()
    keeper = held(client)
    client.error = UnavailableError("restarting")
    keeper.now_s += 20
    keeper.tick()
    assert keeper.lost(LEASE.lease_id) is None

    client.error = None
    keeper.now_s += 2
    keeper.tick()

    assert client.renewed == 1


def test_a_lost_lease_is_remembered_and_not_asked_for_again() -> None:
    """A lease that the broker does not know stays lost; releasing it raises nothing."""
    client = FakeClient()
    keeper = held(client)
    client.error = UnknownLeaseError("gone", lease_id="l")
    keeper.now_s += 20
    keeper.tick()

    assert isinstance(keeper.lost(LEASE.lease_id), UnknownLeaseError)
    client.error = None
    keeper.now_s += 100
    keeper.tick()
    assert client.renewed == 0
    assert keeper.release(LEASE.lease_id)
    assert client.dropped == []


def test_release_drops_what_is_ours() -> None:
    """An own lease ends at once; a borrowed one runs out by itself."""
    ours, borrowed = FakeClient(), FakeClient()

    assert held(ours).release_all() == 1
    assert held(borrowed, drop_at_end=False).release_all() == 1

    assert (ours.dropped, borrowed.dropped) == (["l"], [])


def test_an_abandoned_lease_runs_out_by_itself() -> None:
    """It is renewed no more and not dropped either; an unknown one is fine."""
    client = FakeClient()
    keeper = held(client)
    keeper.abandon(LEASE.lease_id)
    keeper.abandon(LEASE.lease_id)

    keeper.tick()

    assert (keeper.held(), client.dropped) == ([], [])


def test_a_broker_that_is_gone_does_not_disturb_the_release() -> None:
    """The lease will expire; the caller has nothing to do about it."""
    client = FakeClient()
    keeper = held(client)
    client.error = UnavailableError("gone")

    assert keeper.release(LEASE.lease_id)
    assert not keeper.release(LEASE.lease_id)


def test_a_lease_ends_with_its_session() -> None:
    """Once the session has stopped, the next look releases the lease."""
    client = FakeClient()
    used = [True]
    keeper = held(client, used=used)
    keeper.tick()
    assert keeper.held() == ["l"]

    used.append(False)
    keeper.tick()

    assert (keeper.held(), client.dropped) == ([], ["l"])


def test_the_thread_ends_when_nothing_is_held() -> None:
    """No thread is left behind by a read that was released."""
    client = FakeClient()
    keeper = LeaseKeeper()
    keeper.hold(LEASE, client=client, ttl_ms=TTL_MS, drop_at_end=True, what="s")
    thread = keeper._thread
    assert thread is not None
    assert thread.is_alive()

    keeper.release(LEASE.lease_id)

    thread.join(timeout=10)
    assert not thread.is_alive()
