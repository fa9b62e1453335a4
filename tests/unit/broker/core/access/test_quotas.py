"""What passes under a quota: at most its rate and a burst, and each piece in its turn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from broker.core.access.quotas import _UNUSED_KEPT_MAX, Quotas, Throttled
from broker.core.access.shares import Share, ShareTable
from broker.model.quota import Quota
from broker.model.tenant import Tenant

RATE: Final = 2_000
ANN: Final = Quota(principal="ann", publish_bytes_per_s=RATE, requests_per_s=5, open_calls=2)


def ask(
    quotas: Quotas, amount: int, now_ms: int, *, quota: Quota | None = ANN, ticket: int = 1
) -> int:
    """Ask for a piece of ann's."""
    shares = [Share("ann", quota)]
    return quotas.ask(shares, "token", "publish", ticket=ticket, amount=amount, now_ms=now_ms)


def test_a_burst_of_one_second_passes_at_once_and_the_rest_at_the_rate() -> None:
    """The answer says exactly after how long to ask again."""
    quotas = Quotas()
    assert ask(quotas, RATE, 0) == 0
    assert ask(quotas, RATE // 2, 0) == 500
    assert ask(quotas, RATE // 2, 499) == 1
    assert ask(quotas, RATE // 2, 500) == 0
    assert quotas.throttled == {("token", "publish"): Throttled(1, 500)}


def test_a_piece_larger_than_the_burst_passes_and_is_paid_for_afterwards() -> None:
    """Else it would never pass."""
    quotas = Quotas()
    assert ask(quotas, 3 * RATE, 0) == 0
    assert ask(quotas, 1, 0) == 2_001
    assert ask(quotas, 1, 2_001) == 0


def test_who_came_first_passes_first_however_large_it_is() -> None:
    """Small pieces do not pass by a large one; a caller that gives up holds nobody back."""
    quotas = Quotas()
    ask(quotas, RATE, 0)
    assert ask(quotas, RATE, 0, ticket=1) == 1_000
    assert ask(quotas, 1, 500, ticket=2) > 0
    assert ask(quotas, RATE, 1_000, ticket=1) == 0
    assert ask(quotas, 1, 1_001, ticket=2) == 0
    ask(quotas, RATE, 1_001, ticket=3)
    assert ask(quotas, 1, 1_500, ticket=4) > 0
    quotas.leave("token", "publish", ticket=3, now_ms=1_501)
    assert ask(quotas, 1, 1_501, ticket=4) == 0


def test_another_quota_counts_from_the_next_question_on() -> None:
    """For those who wait, too; without a quota everything passes."""
    quotas = Quotas()
    ask(quotas, RATE, 0)
    assert ask(quotas, RATE, 0) == 1_000
    faster = Quota(principal="ann", publish_bytes_per_s=10 * RATE)
    assert ask(quotas, RATE, 0, quota=faster) == 100
    slower = Quota(principal="ann", publish_bytes_per_s=RATE // 2)
    assert ask(quotas, RATE, 0, quota=slower) == 1_000
    assert ask(quotas, RATE, 0, quota=None) == 0
    assert ask(quotas, 100 * RATE, 1, ticket=2, quota=None) == 0
    assert quotas.throttled[("token", "publish")].pieces == 1


def test_requests_are_refused_with_the_time_to_wait() -> None:
    """Five at once, then one each 200 ms."""
    quotas, share = Quotas(), Share("ann", ANN)
    told = [quotas.request([share], "jwt", now_ms=0) for _ in range(6)]
    assert told == [None] * 5 + [(share, 200)]
    assert quotas.request([share], "jwt", now_ms=200) is None
    assert quotas.request([Share("ann")], "jwt", now_ms=200) is None
    assert quotas.throttled == {("jwt", "requests"): Throttled(1, 200)}


def test_open_calls_are_counted_whether_there_is_a_quota_or_not() -> None:
    """A quota that comes later knows of the calls that are open then."""
    quotas, share = Quotas(), Share("ann", ANN)
    for one in (Share("ann"), Share("ann")):
        assert quotas.enter([one], now_ms=0) is None
    assert quotas.enter([share], now_ms=0) == share
    quotas.exit("ann")
    assert quotas.enter([share], now_ms=0) is None
    assert quotas.enter([Share("bob", ANN)], now_ms=0) is None


def test_shares_that_were_used_once_are_forgotten() -> None:
    """Those that owe something, or have a call open, are not."""
    quotas = Quotas()
    for name in ("busy", "owing"):
        quotas.enter([Share(name, ANN)], now_ms=0)
    quotas.exit("owing")
    owing = [Share("owing", ANN)]
    quotas.ask(owing, "jwt", "publish", ticket=1, amount=9 * RATE, now_ms=0)
    for number in range(3 * _UNUSED_KEPT_MAX):
        shares = [Share(f"p{number}", ANN)]
        quotas.ask(shares, "jwt", "publish", ticket=1, amount=1, now_ms=2 * number)
        assert len(quotas._uses) <= _UNUSED_KEPT_MAX
    assert quotas._uses.keys() >= {"busy", "owing"}


# ---------------------------------------------------------------------- tenants

SHOP: Final = Tenant(
    name="shop",
    owners=("ann", "bob"),
    publish_bytes_per_s=RATE,
    requests_per_s=3,
    open_calls=2,
)


def test_a_principal_uses_its_own_share_and_its_tenants() -> None:
    """The tenant's quota has a name that no principal can have."""
    table = ShareTable([ANN], [SHOP])
    own, shared = table.of("ann")
    assert own == Share("ann", ANN)
    assert (shared.tenant, shared.quota) == ("shop", SHOP.quota)
    assert table.of("bob") == (Share("bob"), shared)
    assert table.of("cy") == (Share("cy"),)


def test_the_principals_of_a_tenant_share_its_rate() -> None:
    """What one of them has used another one waits for."""
    quotas, table = Quotas(), ShareTable((), [SHOP])

    def publish(who: str, ticket: int, now_ms: int) -> int:
        shares = table.of(who)
        return quotas.ask(shares, "jwt", "publish", ticket=ticket, amount=RATE, now_ms=now_ms)

    assert publish("ann", 1, 0) == 0
    assert publish("bob", 2, 0) == 1_000
    assert publish("ann", 3, 500) > 0
    assert publish("bob", 2, 1_000) == 0
    assert publish("ann", 3, 1_999) == 1
    assert publish("ann", 3, 2_000) == 0
    assert publish("cy", 4, 2_000) == 0


def test_a_piece_that_its_own_quota_holds_back_is_in_nobodys_way() -> None:
    """It joins the tenant's queue when its own has let it pass, and is charged in each once."""
    slow = Quota(principal="ann", publish_bytes_per_s=RATE // 4)
    quotas, table = Quotas(), ShareTable([slow], [SHOP])

    def publish(who: str, ticket: int, amount: int, now_ms: int) -> int:
        shares = table.of(who)
        return quotas.ask(shares, "jwt", "publish", ticket=ticket, amount=amount, now_ms=now_ms)

    assert publish("ann", 1, RATE // 4, 0) == 0
    assert publish("ann", 1, RATE // 4, 0) == 1_000
    assert publish("bob", 2, 3 * RATE // 4, 0) == 0
    assert publish("bob", 2, RATE, 999) > 0
    assert publish("ann", 1, RATE // 4, 1_000) > 0  # behind bob's, in the tenant's queue
    assert publish("bob", 2, RATE, 1_000) == 0
    assert publish("ann", 1, RATE // 4, 1_250) == 0
    assert publish("ann", 3, RATE // 4, 1_250) == 750  # since 1,000 its own quota has accrued


def test_a_ticket_leaves_the_queue_of_a_tenant_that_is_its_no_more() -> None:
    """Else nobody of that tenant would ever pass."""
    quotas, table = Quotas(), ShareTable((), [SHOP])

    def publish(shares: Any, ticket: int, now_ms: int) -> int:
        return quotas.ask(shares, "jwt", "publish", ticket=ticket, amount=RATE, now_ms=now_ms)

    assert publish(table.of("ann"), 1, 0) == 0
    assert publish(table.of("ann"), 1, 0) > 0
    own = [Share("ann", ANN)]
    assert publish(own, 2, 10) == 0
    assert publish(own, 1, 10) > 0
    assert publish(table.of("bob"), 3, 1_000) == 0
    assert publish(own, 1, 1_010) == 0


def test_a_tenants_requests_and_open_calls_are_counted_together() -> None:
    """A request that the tenant refuses is not charged to the principal either."""
    each = Quota(principal="*", requests_per_s=2)
    quotas, table = Quotas(), ShareTable([each], [SHOP])
    ann, bob = table.of("ann"), table.of("bob")
    told = [quotas.request(one, "jwt", now_ms=0) for one in (ann, bob, ann, bob)]
    assert told == [None, None, None, (bob[1], 334)]
    assert quotas.request(bob, "jwt", now_ms=334) is None
    assert [quotas.enter(one, now_ms=0) for one in (ann, bob, ann)] == [None, None, ann[1]]
    quotas.exit("bob")
    assert quotas.enter(ann, now_ms=0) is None
    quotas.exit("ann")
    quotas.exit("ann")
    assert quotas.enter(bob, now_ms=0) is None


pieces: Any = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3 * RATE), st.integers(0, 1500)),
    min_size=1,
    max_size=40,
)


@given(pieces)
def test_no_interval_lets_more_through_than_its_rate_and_a_burst(
    wanted: list[tuple[int, int, int]],
) -> None:
    """Any callers, sizes and pauses; each piece passes, and none before one that came first."""
    quotas, now_ms = Quotas(), 0
    waiting: list[tuple[int, int]] = []  # ticket and amount
    passed: list[tuple[int, int]] = []  # when, and the amount
    for ticket, amount, pause_ms in wanted:
        now_ms += pause_ms
        if ticket not in {one for one, _ in waiting}:
            waiting.append((ticket, amount))
        passed += _asked(quotas, waiting, now_ms)
    steps = 0
    while waiting:
        now_ms += max(
            1, min(ask(quotas, size, now_ms, ticket=one) for one, size in waiting[1:] or waiting)
        )
        passed += _asked(quotas, waiting, now_ms)
        steps += 1
        assert steps < 50 * len(wanted), "a piece never passes"
    largest = max(size for _, size in passed)
    for first in range(len(passed)):
        total = 0
        for at_ms, size in passed[first:]:
            total += size
            assert total <= RATE * (at_ms - passed[first][0]) / 1000 + max(RATE, largest)
    assert all(one[0] <= other[0] for one, other in pairwise(passed))


def _asked(quotas: Quotas, waiting: list[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
    """Ask for all that wait; return what passed. Nobody passes somebody who came before."""
    passed, held = [], False
    for ticket, amount in list(waiting):
        if ask(quotas, amount, now_ms, ticket=ticket):
            held = True
        else:
            assert not held, "somebody passed by another one"
            waiting.remove((ticket, amount))
            passed.append((now_ms, amount))
    return passed
