"""The controller's inbox: the newest of each sender and kind, and no more than it may hold."""

from __future__ import annotations

from broker.runtime.inbox import Inbox


def test_news_replaces_older_news_in_its_place() -> None:
    """A slow reader meets each sender's newest message, in the order in which they first came."""
    inbox = Inbox(waiting_max=10)
    inbox.offer("a", 1)
    inbox.put("state", "old")
    inbox.offer("a", 2)
    inbox.put("state", "new")
    assert [inbox.take(), inbox.take(), inbox.take()] == [("a", 2), ("state", "new"), None]


def test_what_has_no_room_is_dropped_and_counted() -> None:
    """Only offers: what is put has its bound from whoever puts it."""
    inbox = Inbox(waiting_max=2)
    for number in range(5):
        inbox.offer(number, number)
    inbox.offer(1, "newer")
    inbox.put("state", "must")
    assert inbox.dropped == 3
    assert len(inbox) == 3
    assert [inbox.take() for _ in range(3)] == [(0, 0), (1, "newer"), ("state", "must")]


def test_whoever_takes_is_woken_for_what_was_taken_in() -> None:
    """A dropped offer is no news."""
    woken: list[int] = []
    inbox = Inbox(waiting_max=1, wake=lambda: woken.append(len(inbox)))
    inbox.offer("a", 1)
    inbox.offer("b", 2)
    inbox.put("state", "new")
    assert woken == [1, 2]
