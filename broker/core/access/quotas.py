"""How much each share has used, and when its next piece may pass. Pure: time is an argument.

A piece is a batch of records, a part of a read, or a request. A :class:`Bucket` has the tokens of
one flow of one share. They accrue at the quota's rate, up to those of one second, and a piece
passes when the bucket has as many tokens as the piece needs. A piece that needs more than one
second's tokens passes when the bucket is full, and the bucket then owes the rest. So what passes in
any interval is at most ``rate × interval + max(rate × 1 s, the largest piece)``.

Pieces that have to wait form a queue: the first passes first, however large it is. A caller asks
again after the time that it was told, with the same ticket, and leaves the queue when it gives up.
A quota that has changed counts from the next question on, for those who wait, too.

A principal of a tenant has two shares: its own and, behind it, the tenant's. A piece passes the
first queue and then joins the second. So a piece that its own principal's quota holds back is never
in the way of the tenant's other principals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.core.access.shares import Share
from broker.model.quota import Flow

_MILLI: Final = 1000  # a bucket counts in thousandths: a rate per second is exact in milliseconds
_BEHIND_OTHERS_MS: Final = 10  # after which somebody who is not the first asks again at the soonest
_UNUSED_KEPT_MAX: Final = 1024


class Bucket:
    """The tokens of one flow of one share; full at first."""

    __slots__ = ("_at_ms", "_milli", "_rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self._rate = rate  # tokens of a second, and the most that the bucket holds
        self._milli = rate * _MILLI
        self._at_ms = now_ms

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Change the rate from now on."""
        if rate != self._rate:
            self._accrue(now_ms)
            self._rate = rate
            self._milli = min(self._milli, rate * _MILLI)

    def wait_ms(self, amount: int, now_ms: int) -> int:
        """Return after how many milliseconds a piece may pass; 0: now."""
        self._accrue(now_ms)
        missing = min(amount, self._rate) * _MILLI - self._milli
        return 0 if missing <= 0 else -(-missing // self._rate)

    def take(self, amount: int) -> None:
        """Take the tokens of a piece that passes."""
        self._milli -= amount * _MILLI

    def is_full(self, now_ms: int) -> bool:
        """Tell whether nothing would change if the bucket was forgotten."""
        self._accrue(now_ms)
        return self._milli == self._rate * _MILLI

    def _accrue(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            grown = self._milli + (now_ms - self._at_ms) * self._rate
            self._milli = min(grown, self._rate * _MILLI)
            self._at_ms = now_ms


class _Queue:
    """The bucket of one flow of one share, and who waits for it, in the order of arrival."""

    def __init__(self, rate: int, now_ms: int) -> None:
        self.bucket = Bucket(rate, now_ms)
        self.waiting: dict[int, tuple[int, int]] = {}  # by ticket: the amount, and since when

    def ask(self, ticket: int, amount: int, now_ms: int) -> int:
        first = next(iter(self.waiting), ticket)
        if first != ticket:
            self.waiting.setdefault(ticket, (amount, now_ms))
            wait_ms = self.bucket.wait_ms(self.waiting[first][0], now_ms)
            return max(wait_ms, _BEHIND_OTHERS_MS)
        wait_ms = self.bucket.wait_ms(amount, now_ms)
        if wait_ms:
            self.waiting.setdefault(ticket, (amount, now_ms))
        else:
            self.bucket.take(amount)
        return wait_ms


@dataclass(slots=True)
class _Use:
    """What is used of one share now."""

    queues: dict[Flow, _Queue] = field(default_factory=dict)
    open_calls: int = 0
    # Of a principal: for each open call, the shares that it was counted in.
    entered: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Throttled:
    """How often, and for how long, pieces of one flow had to wait. Both only grow."""

    pieces: int = 0
    waited_ms: int = 0


class Quotas:
    """What all callers use of this broker. The owner asks from one thread at a time.

    ``shares`` are those of the caller, its principal's own share first.
    """

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}  # by share
        self._unused_max = _UNUSED_KEPT_MAX
        self._waits: dict[int, str] = {}  # by ticket: the share in whose queue it is
        # By how the principal was proved, and by flow: no metric has a series for each principal.
        self.throttled: dict[tuple[str, Flow], Throttled] = {}

    def ask(
        self,
        shares: Sequence[Share],
        via: str,
        flow: Flow,
        *,
        ticket: int,
        amount: int,
        now_ms: int,
    ) -> int:
        """Return 0 if a piece may pass now, else after how many milliseconds to ask again.

        A piece that passes is charged, and its ticket may be used for the next piece.
        """
        at = self._waits.get(ticket)
        passed = 0
        if at is not None:
            names = [one.name for one in shares]
            if at in names:
                passed = names.index(at)
            else:  # the principal is of another tenant now
                self.leave(via, flow, ticket=ticket, now_ms=now_ms)
        for share in shares[passed:]:
            queue = self._queue(share, flow, now_ms)
            wait_ms = 0 if queue is None else queue.ask(ticket, amount, now_ms)
            if wait_ms:
                self._waits[ticket] = share.name
                return wait_ms
            self.leave(via, flow, ticket=ticket, now_ms=now_ms)
        return 0

    def leave(self, via: str, flow: Flow, *, ticket: int, now_ms: int) -> None:
        """Take a piece out of the queue in which it is, if it is in one: it waits no more.

        A piece that gives up in the queue of its tenant was charged to its principal.
        """
        share = self._waits.pop(ticket, None)
        if share is not None:
            _, since_ms = self._uses[share].queues[flow].waiting.pop(ticket)
            self._tell(via, flow, now_ms - since_ms)

    def request(
        self, shares: Sequence[Share], via: str, *, now_ms: int
    ) -> tuple[Share, int] | None:
        """Return None if a request may pass now, else the share that it is beyond, and a wait.

        Such a request is refused at once, so it has no place in a queue, and is charged nowhere.
        """
        queues = [(one, self._queue(one, "requests", now_ms)) for one in shares]
        limited = [(one, queue.bucket) for one, queue in queues if queue is not None]
        for share, bucket in limited:
            wait_ms = bucket.wait_ms(1, now_ms)
            if wait_ms:
                self._tell(via, "requests", wait_ms)
                return share, wait_ms
        for _, bucket in limited:
            bucket.take(1)
        return None

    def enter(self, shares: Sequence[Share], *, now_ms: int) -> Share | None:
        """Count a call that stays open; or return the share that has as many as it may."""
        for share in shares:
            use = self._uses.get(share.name)
            if use and share.quota and 0 < share.quota.open_calls <= use.open_calls:
                return share
        names = tuple(one.name for one in shares)
        for name in names:
            self._use_of(name, now_ms).open_calls += 1
        self._uses[names[0]].entered.append(names)
        return None

    def exit(self, principal: str) -> None:
        """Count a call that was open no more, in the shares in which it was counted.

        The principal may be of another tenant by now. Which of its calls has ended does not matter
        to the sums.
        """
        for name in self._uses[principal].entered.pop():
            self._uses[name].open_calls -= 1

    # ------------------------------------------------------------------

    def _queue(self, share: Share, flow: Flow, now_ms: int) -> _Queue | None:
        """Return the queue of a flow, with the rate of now; None: there is no limit."""
        rate = 0 if share.quota is None else share.quota.rate(flow)
        if not rate:
            return None
        queues = self._use_of(share.name, now_ms).queues
        queue = queues.get(flow)
        if queue is None:
            queue = queues[flow] = _Queue(rate, now_ms)
        queue.bucket.set_rate(rate, now_ms)
        return queue

    def _use_of(self, share: str, now_ms: int) -> _Use:
        found = self._uses.get(share)
        if found is None:
            if len(self._uses) >= self._unused_max:
                self._forget_unused(now_ms)
            found = self._uses[share] = _Use()
        return found

    def _forget_unused(self, now_ms: int) -> None:
        """Drop shares whose use is as if nobody had ever come."""
        self._uses = {
            name: use
            for name, use in self._uses.items()
            if use.open_calls
            or any(one.waiting or not one.bucket.is_full(now_ms) for one in use.queues.values())
        }
        self._unused_max = max(_UNUSED_KEPT_MAX, 2 * len(self._uses))

    def _tell(self, via: str, flow: Flow, waited_ms: int) -> None:
        told = self.throttled.setdefault((via, flow), Throttled())
        told.pieces += 1
        told.waited_ms += waited_ms
