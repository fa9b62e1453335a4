"""Where a subscription of Liftbridge's API goes on, and what an end of a call means."""

from __future__ import annotations

import pytest

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    NotLeaderError,
    UnavailableError,
    UnknownStreamError,
)
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.following import FollowedPartition
from headwater.liftbridge.values import Message, Since, Until


def message(offset: int) -> Message:
    """Return a message."""
    return Message("s", 0, offset, 0, b"")


def test_the_next_call_begins_behind_the_last_message() -> None:
    """Whatever the start was; what a server sends again is dropped."""
    following = FollowedPartition("s", 0, Since.earliest(), Until.offset(9))
    assert following.request().startPosition == api.EARLIEST
    following.handshaken()
    assert [following.wants(message(offset)) for offset in (3, 4)] == [True, True]
    assert following.ended("UNAVAILABLE", "gone", 0.0) == "again"
    request = following.request()
    assert (request.startPosition, request.startOffset) == (api.OFFSET, 5)
    assert (request.stopPosition, request.stopOffset) == (api.STOP_OFFSET, 9)
    assert [following.wants(message(offset)) for offset in (4, 5)] == [False, True]


def test_new_messages_are_those_behind_the_newest() -> None:
    """A broken first call skips nothing, and a server that begins lower gives nothing old."""
    following = FollowedPartition("s", 0, Since.new(), Until.never())
    assert following.needs_newest
    following.newest(6)
    assert following.ended("UNAVAILABLE", "gone", 0.0) == "again"
    assert following.request().startOffset == 7
    assert [following.wants(message(offset)) for offset in (5, 6, 7)] == [False, False, True]


def test_a_start_beyond_the_end_takes_what_comes() -> None:
    """As in Liftbridge: offset 100 of a log of ten is the next message, offset 10."""
    following = FollowedPartition("s", 0, Since.offset(100), Until.never())
    assert following.wants(message(10))
    assert following.request().startOffset == 11


def test_backwards_goes_on_below() -> None:
    """And is over below offset 0."""
    following = FollowedPartition("s", 0, Since.latest(), Until.never(), reverse=True)
    assert following.wants(message(1))
    assert following.request().startOffset == 0
    assert not following.finished()
    assert following.wants(message(0))
    assert following.finished()


def test_a_stop_that_is_behind_needs_no_call() -> None:
    """The server was lost between the last message and the end."""
    following = FollowedPartition("s", 0, Since.earliest(), Until.offset(3))
    following.wants(message(2))
    assert not following.finished()
    following.wants(message(3))
    assert following.finished()


def test_a_stop_that_the_server_puts_before_the_start_is_the_end() -> None:
    """After the last message of 'until the latest', the next call could begin behind the stop."""
    told = ("INVALID_ARGUMENT", "Stop offset is before start offset: 4 < 5", 0.0)
    following = FollowedPartition("s", 0, Since.earliest(), Until.latest())
    assert following.wants(message(4))
    assert following.ended(*told) == "done"
    with pytest.raises(InvalidRequestError):  # the caller named both
        FollowedPartition("s", 0, Since.offset(5), Until.offset(4)).ended(*told)


@pytest.mark.parametrize("code", ["OK", "RESOURCE_EXHAUSTED"])
def test_an_end_in_order(code: str) -> None:
    """Another member took the partition; or the stop was reached, or it is read-only."""
    following = FollowedPartition("s", 0, Since.earliest(), Until.never())
    assert following.ended(code, "", 0.0) == "done"


@pytest.mark.parametrize(
    ("code", "accepted", "kind"),
    [
        ("NOT_FOUND", False, UnknownStreamError),
        ("NOT_FOUND", True, UnknownStreamError),
        ("INVALID_ARGUMENT", False, InvalidRequestError),
        ("FAILED_PRECONDITION", True, NotLeaderError),
    ],
)
def test_an_end_that_is_an_error(code: str, accepted: bool, kind: type[HeadwaterError]) -> None:
    """Deleted, impossible, paused."""
    following = FollowedPartition("s", 0, Since.earliest(), Until.never())
    if accepted:
        following.handshaken()
    with pytest.raises(kind):
        following.ended(code, "why", 0.0)


@pytest.mark.parametrize(
    ("code", "kind"), [("FAILED_PRECONDITION", NotLeaderError), ("UNAVAILABLE", UnavailableError)]
)
def test_patience_has_an_end(code: str, kind: type[HeadwaterError]) -> None:
    """It begins with the first refusal, and anew once a server has accepted a call."""
    following = FollowedPartition("s", 0, Since.earliest(), Until.never(), patience_s=30.0)
    assert following.ended(code, "no", 100.0) == "again"
    assert following.ended(code, "no", 129.9) == "again"
    following.handshaken()
    following.accepted = False
    assert following.ended(code, "no", 200.0) == "again"
    with pytest.raises(kind, match="no server serves s/0"):
        following.ended(code, "no", 230.0)
