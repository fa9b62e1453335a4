"""The producer's window against a model broker that breaks, forgets answers and refuses batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from broker.core.dedup import ProducerTable
from broker.errors import (
    CommitTimeoutError,
    EnvelopeError,
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    NotLeaderError,
    OverloadedError,
    PartitionReadonlyError,
    RecordTooLargeError,
    SequenceGapError,
    StaleLeaderEpochError,
    StreamRecreatedError,
    of_unknown_outcome,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, ProducerId
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from cases import each_of, seeds
from headwater.client.window import SendWindow, WindowEntry, outcome_of

OK = AppendResult(Offset(0), 1, LeaderEpoch(1))


def window(*, batches_max: int = 8, bytes_max: int = 1_000) -> SendWindow:
    """Return a window whose producer ids count from 100."""
    ids = itertools.count(101)
    return SendWindow(
        producer_id=ProducerId(100),
        sequence=0,
        batches_max=batches_max,
        bytes_max=bytes_max,
        new_producer_id=lambda: ProducerId(next(ids)),
    )


def send(pipe: SendWindow, count: int, *, size_bytes: int = 10) -> list[WindowEntry]:
    """Add and send ``count`` batches of one record."""
    entries = []
    for number in range(count):
        assert pipe.has_room()
        entry = pipe.add(number, records_count=1, size_bytes=size_bytes)
        assert pipe.next_to_send() is entry
        entries.append(entry)
    return entries


def confirmed_window() -> SendWindow:
    """Return a connected window whose producer id the broker knows."""
    pipe = window()
    pipe.connected()
    send(pipe, 1)
    pipe.answered(OK)
    return pipe


def test_the_first_batch_travels_alone() -> None:
    """Nothing follows the first batch under a producer id until it is stored."""
    pipe = window()
    pipe.connected()
    send(pipe, 1)
    assert not pipe.has_room()
    pipe.answered(OK)
    assert pipe.has_room()
    send(pipe, 8)
    assert not pipe.has_room()


def test_bytes_bound_the_window() -> None:
    """A window that holds its bytes takes no further batch, however few there are."""
    pipe = confirmed_window()
    send(pipe, 1, size_bytes=1_000)
    assert not pipe.has_room()


def test_a_batch_larger_than_the_window_is_taken_alone() -> None:
    """One batch is always taken, so that no size can block for ever."""
    pipe = confirmed_window()
    send(pipe, 1, size_bytes=5_000)
    assert len(pipe) == 1


def test_everything_unanswered_goes_again_with_its_numbers() -> None:
    """After a broken connection the same batches have the same ids, in the same order."""
    pipe = confirmed_window()
    entries = send(pipe, 3)
    before = [(entry.producer_id, entry.base_sequence) for entry in entries]
    pipe.ended()
    pipe.connected()
    again = [pipe.next_to_send() for _ in range(3)]
    assert again == entries
    assert [(entry.producer_id, entry.base_sequence) for entry in entries] == before
    assert pipe.next_to_send() is None


def test_batches_behind_a_refused_one_get_a_new_producer_id() -> None:
    """What the broker refused only for the gap before it goes again under other numbers."""
    pipe = confirmed_window()
    bad, *others = send(pipe, 3)
    assert pipe.answered(RecordTooLargeError("too large")) is bad
    assert not pipe.has_room()
    for _ in others:
        assert pipe.answered(SequenceGapError("gap")) is None
    assert pipe.draining
    assert [(e.producer_id, e.base_sequence) for e in others] == [(101, 0), (101, 1)]
    assert not pipe.confirmed


def test_a_refused_batch_alone_needs_no_new_connection() -> None:
    """With nothing behind it, only the numbers change."""
    pipe = confirmed_window()
    send(pipe, 1)
    pipe.answered(RecordTooLargeError("too large"))
    assert not pipe.draining
    assert pipe.producer_id == 101
    (entry,) = send(pipe, 1)
    assert (entry.producer_id, entry.base_sequence) == (101, 0)


def test_no_batch_is_renumbered_before_the_broker_has_refused_it() -> None:
    """A broken connection behind a refused batch leaves the others' numbers alone."""
    pipe = confirmed_window()
    _, second, third = send(pipe, 3)
    pipe.answered(RecordTooLargeError("too large"))
    pipe.answered(SequenceGapError("gap"))
    pipe.ended()
    pipe.connected()
    assert pipe.producer_id == 100
    assert [pipe.next_to_send(), pipe.next_to_send()] == [second, third]
    pipe.answered(SequenceGapError("gap"))
    assert pipe.producer_id == 100
    pipe.answered(SequenceGapError("gap"))
    assert (second.producer_id, third.base_sequence) == (101, 1)


@pytest.mark.parametrize(
    "error",
    [
        LogFailedError("the log failed"),
        SequenceGapError("the broker does not know this producer"),
        StreamRecreatedError("another stream"),
    ],
)
def test_an_answer_that_judges_no_batch_ends_the_producer(error: HeadwaterError) -> None:
    """Whether the batch is stored is not known, so nothing may be sent under new numbers."""
    pipe = confirmed_window()
    send(pipe, 2)
    with pytest.raises(type(error)):
        pipe.answered(error)
    assert len(pipe.abandon()) == 2
    assert len(pipe) == 0


def test_an_answer_without_a_batch_is_an_error() -> None:
    """A broker that acknowledges more batches than were sent is an error."""
    pipe = confirmed_window()
    with pytest.raises(EnvelopeError):
        pipe.answered(OK)


@dataclass
class ModelBroker:
    """Stores batches as the real broker does, and refuses some of them."""

    random: random.Random
    closed_share: float = 0.0  # of batches, refused before a look at what is stored
    stored: list[int] = field(default_factory=list)
    table: ProducerTable = field(default_factory=ProducerTable)

    def put(self, entry: WindowEntry) -> AppendResult | HeadwaterError:
        """Judge one batch; a batch whose number divides by 7 is never acceptable."""
        if entry.batch % 7 == 3:
            return RecordTooLargeError("too large")
        if self.random.random() < self.closed_share:
            refusals = [PartitionReadonlyError, RecordTooLargeError]
            return self.random.choice(refusals)("for now")
        chance = self.random.random()
        if chance < 0.05:
            return OverloadedError("busy")
        try:
            known = self.table.find(entry.producer_id, entry.base_sequence, entry.records_count)
        except SequenceGapError as error:
            return error
        if known is None:
            known = Offset(len(self.stored))
            self.stored += [entry.batch] * entry.records_count
            self.table.add(entry.producer_id, entry.base_sequence, entry.records_count, known)
        if chance < 0.10:
            return CommitTimeoutError("stored, perhaps")
        return AppendResult(known, entry.records_count, LeaderEpoch(1))


@each_of(seeds(300))
def test_every_batch_is_stored_once_and_in_order(seed: int) -> None:
    """Under breaks, lost answers, retries and refusals, acknowledged means stored exactly once."""
    chance = random.Random(seed)
    broker = ModelBroker(chance)
    pipe = window(batches_max=chance.choice([1, 2, 8]))
    numbers = iter(range(60))
    offsets: dict[int, AppendResult] = {}
    refused: dict[int, HeadwaterError] = {}
    for step in itertools.count():
        assert step < 3_000, f"no progress, seed {seed}"
        exhausted = run_connection(pipe, broker, numbers, chance, offsets, refused)
        if exhausted and not len(pipe):
            break
    expected = [number for number in range(60) if number % 7 != 3]
    deduplicated = [number for number, _ in itertools.groupby(broker.stored)]
    assert deduplicated == expected, f"seed {seed}"
    assert sorted(offsets) == expected
    assert set(refused) == set(range(60)) - set(expected)
    for number, result in offsets.items():
        stored = broker.stored[result.base_offset : result.base_offset + result.records_count]
        assert stored == [number] * result.records_count, f"seed {seed}"
    assert len(broker.stored) == sum(result.records_count for result in offsets.values())


@each_of(seeds(200))
def test_a_refused_batch_is_stored_nowhere(seed: int) -> None:
    """A broker that refuses before it looks for an earlier send does not say where that went."""
    chance = random.Random(seed)
    broker = ModelBroker(chance, closed_share=0.1)
    pipe = window(batches_max=chance.choice([1, 2, 8]))
    numbers = iter(range(60))
    offsets: dict[int, AppendResult] = {}
    refused: dict[int, HeadwaterError] = {}
    while not run_connection(pipe, broker, numbers, chance, offsets, refused) or len(pipe):
        pass
    assert sorted([*offsets, *refused]) == list(range(60))
    for number, error in refused.items():
        if not isinstance(error, CommitTimeoutError):
            assert number not in broker.stored, f"{error}, seed {seed}"


@each_of(seeds(200))
def test_a_batch_that_the_client_refuses_neither_doubles_nor_loses_others(seed: int) -> None:
    """Whatever is before it and behind it is stored once, in order."""
    chance = random.Random(seed)
    broker = ModelBroker(chance)
    pipe = window(batches_max=chance.choice([1, 2, 8]))
    numbers = iter(range(60))
    offsets: dict[int, AppendResult] = {}
    refused: dict[int, HeadwaterError] = {}
    while not run_connection(
        pipe, broker, numbers, chance, offsets, refused, by_client=True
    ) or len(pipe):
        pass
    expected = [number for number in range(60) if number % 7 != 3]
    assert [number for number, _ in itertools.groupby(broker.stored)] == expected, f"seed {seed}"
    assert sorted(offsets) == expected
    assert len(broker.stored) == sum(result.records_count for result in offsets.values())


def test_a_gap_says_nothing_of_the_batches_before_it() -> None:
    """A broker that does not know the producer of an earlier batch may have stored the batch."""
    pipe = confirmed_window()
    _, refused_here = send(pipe, 2)
    assert pipe.refused_by_client(refused_here)
    assert not pipe.has_room()
    with pytest.raises(SequenceGapError):
        pipe.answered(SequenceGapError("the broker has forgotten this producer"))


def test_a_batch_that_the_client_refuses_is_settled_once() -> None:
    """Also if the connection ended meanwhile, or the producer has given up."""
    pipe = confirmed_window()
    before, refused_here = send(pipe, 2)
    pipe.ended()
    assert pipe.refused_by_client(refused_here)
    pipe.connected()
    assert pipe.next_to_send() is before
    assert pipe.answered(OK) is before
    (given_up,) = send(pipe, 1)
    assert (given_up.producer_id, given_up.base_sequence) == (101, 0)
    assert pipe.abandon() == [given_up]
    assert not pipe.refused_by_client(given_up)
    assert not pipe.handed_over(given_up)


def test_a_refusal_by_the_client_says_nothing_of_an_earlier_send() -> None:
    """E.g. the program ends while the batch is sent again."""
    ends = InvalidRequestError("the program ends")
    pipe = confirmed_window()
    (first,) = send(pipe, 1)
    assert outcome_of(first, ends, by_client=True) is ends
    pipe.ended()
    assert outcome_of(first, ends) is ends
    assert isinstance(outcome_of(first, ends, by_client=True), CommitTimeoutError)


def test_a_call_that_is_refused_as_a_whole_has_stored_nothing() -> None:
    """So its batches are refused for certain, unless an earlier call had stored them."""
    closed = PartitionReadonlyError("read-only")
    pipe = confirmed_window()
    (first,) = send(pipe, 1)
    pipe.ended(unread=True)
    assert outcome_of(first, closed) is closed
    pipe.connected()
    assert pipe.next_to_send() is first
    pipe.ended()
    pipe.connected()
    assert pipe.next_to_send() is first
    pipe.ended(unread=True)
    told = outcome_of(first, closed)
    assert isinstance(told, CommitTimeoutError)
    assert told.facts == {"cause": "PartitionReadonlyError"}


def test_a_limit_that_was_lowered_says_nothing_of_an_earlier_send() -> None:
    """Sizes are checked before a look at what is stored: the first send had another limit."""
    too_large = RecordTooLargeError("too large")
    pipe = confirmed_window()
    (first,) = send(pipe, 1)
    assert outcome_of(first, too_large) is too_large
    pipe.ended()
    told = outcome_of(first, too_large)
    assert isinstance(told, CommitTimeoutError)
    assert told.facts == {"cause": "RecordTooLargeError"}


@pytest.mark.parametrize("refusal", [PartitionReadonlyError, RecordTooLargeError])
def test_a_batch_in_the_log_of_a_replaced_leader_may_be_stored(
    refusal: type[HeadwaterError],
) -> None:
    """The next leader may commit it, and refuse it when it comes again."""
    lost = NotLeaderError("this broker stopped leading before the commit")
    for answer, kind in ((lost, refusal), (of_unknown_outcome(lost), CommitTimeoutError)):
        pipe = confirmed_window()
        (first,) = send(pipe, 1)
        assert pipe.answered(answer) is None
        pipe.ended()
        pipe.connected()
        assert pipe.next_to_send() is first
        assert pipe.answered(refusal("no")) is first
        assert type(outcome_of(first, refusal("no"))) is kind


def run_connection(
    pipe: SendWindow,
    broker: ModelBroker,
    numbers: Iterator[int],
    chance: random.Random,
    offsets: dict[int, AppendResult],
    refused: dict[int, HeadwaterError],
    *,
    by_client: bool = False,
) -> bool:
    """Play one connection until it ends or breaks; return whether no number is left to send.

    ``by_client``: the client itself refuses some of what is never acceptable.
    """
    pipe.connected()
    answers: list[tuple[WindowEntry, AppendResult | HeadwaterError]] = []
    exhausted = False
    while True:
        entry = pipe.next_to_send()
        if entry is None and not exhausted and not pipe.draining and pipe.has_room():
            number = next(numbers, None)
            if number is None:
                exhausted = True
            else:
                pipe.add(number, records_count=chance.randint(1, 3), size_bytes=10)
            continue
        if entry is not None and by_client and entry.batch % 7 == 3 and chance.random() < 0.7:
            assert pipe.refused_by_client(entry)
            refused[entry.batch] = RecordTooLargeError("too large here")
            continue
        if entry is not None:
            answers.append((entry, broker.put(entry)))
        if answers and (entry is None or chance.random() < 0.5):
            sent, answer = answers.pop(0)
            settled = pipe.answered(answer)
            assert settled is None or settled is sent
            if isinstance(answer, AppendResult):
                offsets[sent.batch] = answer
            elif settled is not None:
                refused[sent.batch] = outcome_of(sent, answer)
        over = entry is None and not answers
        if over or chance.random() < 0.03:
            pipe.ended()
            return exhausted


def test_an_answer_of_an_older_leader_is_not_believed() -> None:
    """The answer of a fenced leader is ignored, and the batch goes again."""
    pipe = confirmed_window()
    (first,) = send(pipe, 1)
    newer = AppendResult(Offset(1), 1, LeaderEpoch(3))
    assert pipe.answered(pipe.judged(newer)) is first
    (second,) = send(pipe, 1)
    judged = pipe.judged(AppendResult(Offset(2), 1, LeaderEpoch(2)))
    assert isinstance(judged, StaleLeaderEpochError)
    assert (judged.got, judged.current) == (2, 3)
    assert pipe.answered(judged) is None
    assert len(pipe) == 1
    pipe.connected()
    assert pipe.next_to_send() is second


def test_a_failed_disk_ends_a_producer_only_where_nobody_takes_over() -> None:
    """In a cluster another broker takes over; a single broker needs an operator."""
    for several in (False, True):
        pipe = confirmed_window()
        pipe.several = several
        send(pipe, 1)
        if several:
            assert pipe.answered(LogFailedError("the log failed")) is None
            assert len(pipe) == 1
        else:
            with pytest.raises(LogFailedError):
                pipe.answered(LogFailedError("the log failed"))


def unnumbered_window() -> SendWindow:
    """Return a connected window whose batches no broker knows again."""
    pipe = SendWindow(
        producer_id=NO_PRODUCER,
        sequence=0,
        batches_max=8,
        bytes_max=1_000,
        new_producer_id=lambda: pytest.fail("no batch may get a number"),
    )
    pipe.connected()
    return pipe


def test_batches_without_numbers_need_no_first_one() -> None:
    """No broker has to know the producer before the second batch, so all may go at once."""
    pipe = unnumbered_window()
    entries = send(pipe, 8)
    assert {(one.producer_id, one.base_sequence) for one in entries} == {(NO_PRODUCER, NO_SEQUENCE)}
    assert not pipe.has_room()


def test_a_refused_batch_without_numbers_leaves_no_gap() -> None:
    """Its neighbours are stored as they are; what failed for now goes again."""
    pipe = unnumbered_window()
    first, second, third = send(pipe, 3)
    assert pipe.answered(RecordTooLargeError("x")) is first
    assert pipe.answered(OverloadedError("x")) is None
    assert pipe.answered(OK) is third
    assert pipe.draining
    pipe.ended()
    pipe.connected()
    assert pipe.next_to_send() is second
    assert pipe.answered(OK) is second
    assert not pipe


def test_a_batch_that_nobody_answers_for_is_settled_when_it_is_sent() -> None:
    """It is not sent again, even if the connection ends at that moment."""
    pipe = unnumbered_window()
    first, second = send(pipe, 2)
    pipe.handed_over(second)
    pipe.ended()
    pipe.handed_over(first)
    assert not pipe
    pipe.connected()
    assert pipe.next_to_send() is None
