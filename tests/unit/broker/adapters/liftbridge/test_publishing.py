"""Messages of Liftbridge's publishers when their leader goes: none is stored twice by a repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from broker.adapters.access.pace import Pace
from broker.adapters.liftbridge.publish_requests import Published, RequestReader
from broker.adapters.liftbridge.publishing import PublishCall
from broker.adapters.liftbridge.statuses import Code, Status
from broker.adapters.liftbridge.targets import PublishTarget
from broker.errors import (
    CommitTimeoutError,
    EncryptionKeyError,
    HeadwaterError,
    KeyProviderUnavailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    ShuttingDownError,
    UnavailableError,
    of_unknown_outcome,
)
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import RecordsOutcome
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.requests import refusal_of

FRAME_PREFIX_SIZE = 5  # of a message of gRPC
LOST = NotLeaderError("this broker stopped leading s/0 before the commit")
STREAM = Stream(
    name="s",
    uuid=cast("Any", "0" * 32),
    config=StreamConfig(subject="s"),
    created_us=0,
    table_name="s",
)


class Rig:
    """A finder, a writer, a clock and a loop that do at once what they are asked for."""

    def __init__(self, *outcomes: HeadwaterError) -> None:
        self.outcomes = [*outcomes]  # of the first submissions; the next one is stored
        self.submitted_count = 0
        self.answers: list[tuple[api.PublishResponse, Status]] = []

    def look_up(self, stream: str, partition: int, found: Callable[[Any], None]) -> None:
        """See ``PartitionFinder``."""
        found(PublishTarget(STREAM, partition, cast("Any", self)))

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PartitionFinder``."""
        return False

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """See ``PartitionFinder``."""
        work()

    def submit_records(
        self, batch: Any, ids: Any, done: Callable[[Any], None], **options: Any
    ) -> None:
        """See ``PartitionWriter``."""
        self.submitted_count += 1
        if self.outcomes:
            done(self.outcomes.pop(0))
        else:
            done(RecordsOutcome([Offset(7)], frozenset(), cast("Any", 1)))

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return 0

    def now_us(self) -> int:
        """See ``Clock``."""
        return 0

    def publish(self) -> None:
        """Publish one message."""

        def answer(_: Sequence[Published], told: Sequence[bytes], status: Status) -> None:
            response = api.PublishResponse.FromString(told[0][FRAME_PREFIX_SIZE:])
            self.answers.append((response, status))

        pace = Pace(None, cast("Any", None), "publish")
        call = PublishCall(cast("Any", self), cast("Any", self), lambda work: work(), answer, pace)
        payload = api.PublishRequest(stream="s", value=b"x").SerializeToString()
        call.take(RequestReader().read([payload], [1], 0))
        assert call.idle


@pytest.mark.parametrize("outcome", [LOST, ShuttingDownError("partition s/0 is closing")])
def test_a_message_that_no_leader_took_is_given_to_the_next_one(outcome: HeadwaterError) -> None:
    """It is surely not stored, so it waits for a leader, or for the stream that is made again."""
    rig = Rig(outcome)
    rig.publish()
    ((told, _),) = rig.answers
    assert (told.ack.offset, rig.submitted_count) == (7, 2)


@pytest.mark.parametrize(
    "outcome",
    [
        of_unknown_outcome(LOST),
        of_unknown_outcome(ShuttingDownError("closes")),
        CommitTimeoutError("no answer"),
    ],
)
def test_a_message_that_may_be_stored_is_not_stored_again(outcome: HeadwaterError) -> None:
    """Its leader has lost the partition with it, so the publisher decides, and is told so."""
    rig = Rig(outcome)
    rig.publish()
    ((told, status),) = rig.answers
    assert (rig.submitted_count, status.code) == (1, Code.DEADLINE_EXCEEDED)
    assert isinstance(refusal_of(told.asyncError), CommitTimeoutError)


def test_other_refusals_say_that_nothing_is_stored() -> None:
    """So Headwater's client of the API asks another server."""
    rig = Rig(UnavailableError("the queue is full"))
    rig.publish()
    ((told, _),) = rig.answers
    assert type(refusal_of(told.asyncError)) is UnavailableError


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (EncryptionKeyError("the key is another one"), Code.INTERNAL),
        (KeyProviderUnavailableError("KMS does not answer"), Code.UNAVAILABLE),
    ],
)
def test_a_message_that_cannot_be_encrypted_has_liftbridges_code(
    outcome: HeadwaterError, code: Code
) -> None:
    """Publish says Internal; a provider that does not answer now may answer the next call."""
    rig = Rig(outcome)
    rig.publish()
    ((told, status),) = rig.answers
    assert (told.asyncError.code, status.code) == (api.PublishAsyncError.ENCRYPTION_FAILED, code)
    assert type(refusal_of(told.asyncError)) is EncryptionKeyError


def test_all_below_the_minimum_isr_is_refused_at_once() -> None:
    """Unlike in Liftbridge: nothing is stored, and nothing behind the message has to wait."""
    rig = Rig(NotEnoughReplicasError("1 replica is in sync; ack policy ALL needs 2"))
    rig.publish()
    ((told, status),) = rig.answers
    assert (rig.submitted_count, status.code) == (1, Code.UNAVAILABLE)
    assert told.asyncError.code == api.PublishAsyncError.INTERNAL


class _Slow(Pace):
    """A quota that is used up."""

    def ask(self, size_bytes: int) -> int:
        """Let nothing pass."""
        return 10


@pytest.mark.parametrize(("pace", "may_store"), [(Pace, True), (_Slow, False)])
def test_a_message_that_waits_for_a_leader_may_be_stored_after_its_call(
    pace: type[Pace], may_store: bool
) -> None:
    """A call that ends gives up only what its quota holds back; the wait for a leader goes on."""
    rig = Rig(LOST)
    later: list[Callable[[], None]] = []
    rig.call_later = lambda delay_s, work: later.append(work)  # type: ignore[method-assign]
    call = PublishCall(
        cast("Any", rig),
        cast("Any", rig),
        lambda work: work(),
        lambda *_: None,
        pace(None, cast("Any", None), "publish"),
    )
    payload = api.PublishRequest(stream="s", value=b"x").SerializeToString()
    call.take(RequestReader().read([payload], [1], 0))
    assert call.may_store is may_store
    call.end()
    later.pop()()
    assert rig.submitted_count == (2 if may_store else 0)
    assert not call.may_store
