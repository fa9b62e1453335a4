"""Mailboxes of pumps: the newest of each sender and kind, or everything in order; both bounded."""

from __future__ import annotations

from broker.runtime.inbox import Inbox, Mailbox


def test_news_replaces_older_news_in_its_place() -> None:
    """A slow reader meets each sender's newest message, in the order in which they first came."""
    inbox = Inbox(waiting_max=10)
    inbox.offer("a", 1)
    inbox.put("state", "old")
    inbox.offer("a", 2)
    inbox.put("state", "new")
    assert [inbox.take(), inbox.take(), inbox.take()] == [("a", 2), ("state", "new"), None]


def test_what_has_no_room_is_dropped_and_counted() -> None:
    """Only ``offer`` is bounded here: callers of ``put`` bound their own items."""
    inbox = Inbox(waiting_max=2)
    for number in range(5):
        inbox.offer(number, number)
    inbox.offer(1, "newer")
    inbox.put("state", "must")
    assert inbox.dropped == 3
    assert len(inbox) == 3
    assert [inbox.take() for _ in range(3)] == [(0, 0), (1, "newer"), ("state", "must")]


def test_whoever_takes_is_woken_for_what_was_taken_in() -> None:
    """A dropped message wakes no pump."""
    woken: list[int] = []
    inbox = Inbox(waiting_max=1, wake=lambda: woken.append(len(inbox)))
    inbox.offer("a", 1)
    inbox.offer("b", 2)
    inbox.put("state", "new")
    assert woken == [1, 2]


def test_a_mailbox_keeps_the_order_and_its_bound() -> None:
    """A full mailbox refuses; an accepted item asks for a turn."""
    woken: list[int] = []
    mailbox = Mailbox[int](waiting_max=3, wake=lambda: woken.append(1))
    assert [mailbox.put(number) for number in range(4)] == [True, True, True, False]
    assert len(woken) == 3
    assert mailbox.take(2) == [0, 1]
    assert mailbox.put(4)
    assert (mailbox.take(9), len(mailbox)) == ([2, 4], 0)


def test_a_closed_mailbox_hands_over_what_nobody_took() -> None:
    """Each item is taken or handed over once; a closed mailbox takes no more."""
    mailbox = Mailbox[int](waiting_max=3, wake=lambda: None)
    mailbox.put(1)
    assert mailbox.close() == [1]
    assert not mailbox.put(2)
    assert (mailbox.close(), mailbox.take(9)) == ([], [])
