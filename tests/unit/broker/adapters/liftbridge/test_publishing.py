"""Messages of Liftbridge's publishers when their leader goes: none is stored twice by a repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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

    keeps_order = True

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


EACH_ALONE = replace(STREAM, config=StreamConfig(subject="s", optimistic_concurrency=True))


class Held(Rig):
    """A partition that answers when the test says so, and an event loop with a clock."""

    def __init__(self, stream: Stream = STREAM, *, keeps_order: bool = True) -> None:
        super().__init__()
        self.keeps_order = keeps_order
        self.stream = stream
        self.now_ms = 0
        self.submitted: list[list[bytes]] = []
        self.raises: list[
            HeadwaterError | MemoryError
        ] = []  # one for each of the first submissions
        self.told: list[tuple[str, bool]] = []  # correlation id, and whether it was stored
        self.is_resting = False  # each look-up takes until the test calls what is in ``found``
        self.found: list[Callable[[], None]] = []
        self._dones: dict[int, Callable[[Any], None]] = {}
        self._later: list[tuple[int, Callable[[], None]]] = []
        pace = Pace(None, cast("Any", None), "publish")
        self.call = PublishCall(
            cast("Any", self), cast("Any", self), lambda work: work(), self._answered, pace
        )

    def _answered(self, published: Sequence[Published], _: Sequence[bytes], status: Status) -> None:
        self.told += [(one.correlation_id, status.code is Code.OK) for one in published]

    def look_up(self, stream: str, partition: int, found: Callable[[Any], None]) -> None:
        """See ``PartitionFinder``."""
        target = PublishTarget(self.stream, partition, cast("Any", self))
        if self.is_resting:
            self.found.append(lambda: found(target))
        else:
            found(target)

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PartitionFinder``."""
        return self.is_resting

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """See ``PartitionFinder``."""
        self._later.append((self.now_ms + int(delay_s * 1000), work))

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return self.now_ms

    def submit_records(
        self, batch: Any, ids: Any, done: Callable[[Any], None], **options: Any
    ) -> None:
        """See ``PartitionWriter``."""
        error = self.raises.pop(0) if self.raises else None
        if isinstance(error, HeadwaterError):
            raise error
        self._dones[len(self.submitted)] = done
        self.submitted.append(batch.column("value").to_pylist())
        if error is not None:  # no memory for what comes behind the queue
            raise error

    def take(self, *values: bytes) -> None:
        """Let messages come in one read of the socket; each is its own correlation id."""
        payloads = [
            api.PublishRequest(
                stream="s", value=one, correlationId=one.decode(), expectedOffset=-1
            ).SerializeToString()
            for one in values
        ]
        self.call.take(RequestReader().read(payloads, [1] * len(payloads), 0))

    def answer(self, number: int, error: HeadwaterError | None = None) -> None:
        """Answer a submission."""
        count = len(self.submitted[number])
        stored = RecordsOutcome([Offset(0)] * count, frozenset(), cast("Any", 1))
        self._dones.pop(number)(error or stored)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while due := [one for one in self._later if one[0] <= end_ms]:
            first = min(due, key=lambda one: one[0])
            self._later.remove(first)
            self.now_ms = max(self.now_ms, first[0])
            first[1]()
        self.now_ms = end_ms

    def stored(self, since: int) -> list[bytes]:
        """Return the values that were submitted from a submission on, in order."""
        return [value for values in self.submitted[since:] for value in values]


@pytest.mark.parametrize("answered", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_what_a_leader_refused_is_stored_in_order_by_the_next(answered: tuple[int, ...]) -> None:
    """Three reads of the socket wait behind a turn, and then the lease is over."""
    held = Held()
    for value in (b"1", b"2", b"3"):
        held.take(value)
    for number in answered:
        held.answer(number, LOST)
    held.take(b"4")
    held.pass_ms(50)
    assert held.stored(3) == [b"1", b"2", b"3", b"4"]
    held.answer(3)
    assert held.told == [(one, True) for one in "1234"]


def test_messages_that_are_submitted_alone_stay_in_order() -> None:
    """Each is refused while it is submitted: with optimistic concurrency each is one submission."""
    held = Held(EACH_ALONE)
    held.raises = [LOST, LOST, LOST]
    held.take(b"1", b"2", b"3")
    for _ in range(4):
        held.pass_ms(50)
    assert held.submitted == [[b"1"], [b"2"], [b"3"]]


def test_nothing_overtakes_a_refused_message_while_the_others_are_not_decided() -> None:
    """The next leader gets nothing before it is known what became of all that the last one had."""
    held = Held()
    held.take(b"1")
    held.take(b"2")
    held.answer(0, LOST)
    held.take(b"3")
    held.pass_ms(1000)
    assert held.submitted == [[b"1"], [b"2"]]
    held.answer(1, LOST)
    held.pass_ms(50)
    assert held.stored(2) == [b"1", b"2", b"3"]


def test_a_partition_that_keeps_no_order_gets_one_submission_at_a_time() -> None:
    """The leader is another broker: it may refuse one message and take the next."""
    held = Held(keeps_order=False)
    for value in (b"1", b"2", b"3"):
        held.take(value)
    assert held.submitted == [[b"1"]]
    held.answer(0, LOST)
    held.pass_ms(50)
    assert held.submitted == [[b"1"], [b"1", b"2", b"3"]]
    held.take(b"4")
    held.answer(1)
    assert held.submitted[2:] == [[b"4"]]


def test_messages_behind_one_without_an_outcome_are_refused_in_time() -> None:
    """A leader that is cut off may never tell what became of the first."""
    held = Held()
    held.take(b"1")
    held.take(b"2")
    held.answer(1, LOST)
    held.pass_ms(4_000)
    held.take(b"3")
    held.pass_ms(1_050)
    assert held.told == [("2", False)]
    assert held.submitted == [[b"1"], [b"2"], [b"3"]]
    held.answer(2, LOST)  # as the partition does for messages behind a refused one
    held.pass_ms(5_000)
    held.answer(0)
    assert held.told == [("2", False), ("3", False), ("1", True)]
    assert held.call.idle


def test_a_refusal_during_a_look_up_is_not_forgotten() -> None:
    """The partition was paused with a message under way, and the next message resumes it."""
    held = Held()
    held.take(b"1")
    held.is_resting = True
    held.take(b"2")
    held.answer(0, LOST)
    held.is_resting = False
    held.found.pop()()
    held.pass_ms(50)
    assert held.stored(1) == [b"1", b"2"]


@pytest.mark.parametrize("keeps_order", [True, False])
def test_a_message_for_which_there_is_no_memory_has_an_outcome(keeps_order: bool) -> None:
    """It may be queued or not; it has one outcome, and the messages behind it go on."""
    held = Held(keeps_order=keeps_order)
    held.raises = [MemoryError()]
    held.take(b"1")
    held.take(b"2")
    held.answer(0)
    held.answer(1)
    assert held.told == [("1", False), ("2", True)]
    assert held.call.idle


def test_refused_submissions_in_great_number_are_no_trouble() -> None:
    """Each is refused while it is submitted, for a reason that is final."""
    held = Held(EACH_ALONE)
    held.raises = [UnavailableError("the queue is full") for _ in range(3000)]
    held.take(*(b"%d" % number for number in range(3000)))
    assert held.told == [(str(number), False) for number in range(3000)]
    assert held.call.idle
