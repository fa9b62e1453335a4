"""Clients of Liftbridge's API in a chaos run: a publisher with acks, and a subscriber.

Both are ``headwater.liftbridge``, as its users have it. A message whose fate the client does not
know is not sent again: the API has no message ids.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from broker.errors import CommitTimeoutError, HeadwaterError, NotLeaderError, UnavailableError
from broker.model.records import AckPolicy
from chaoskit.recorder import ChaosRecorder
from checkkit.arrow import COLUMNS, columns_by_partition
from checkkit.history import NOBODY
from checkkit.readings import Row
from clusterkit.login import OPEN, Login
from crashkit.records import RecordMaker, TestRecord
from headwater.client import Client
from headwater.liftbridge import Message, PublishAck, Since

_WINDOW: Final = 32
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.2
_POLL_ROWS: Final = 1_000
_STRANGE: Final = b"seen by Liftbridge's API, and not in the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftLoadConfig:
    """How one publisher behaves."""

    addresses: str
    stream: str
    partition: int
    records_per_s: int
    login: Login = OPEN


class LiftLoad:
    """One publisher in a thread of its own."""

    def __init__(
        self, config: LiftLoadConfig, maker: RecordMaker, recorder: ChaosRecorder, *, seed: str
    ) -> None:
        self._config, self._maker, self._recorder = config, maker, recorder
        self._random = random.Random(seed)
        self._client = config.login.liftbridge(config.addresses)
        self._producing = threading.Event()
        self._producing.set()
        self._ending = threading.Event()
        self._waiting: set[str] = set()
        self._changed = threading.Lock()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=maker.producer, daemon=True)

    @property
    def unanswered(self) -> int:
        """Messages whose fate is not known yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def pause(self) -> None:
        """Publish nothing new."""
        self._producing.clear()

    def stop(self) -> None:
        """End the thread and the client. Blocks."""
        self._ending.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._ending.wait(self._random.expovariate(self._config.records_per_s)):
            if self._producing.is_set() and len(self._waiting) < _WINDOW:
                self._publish(self._maker.for_liftbridge())

    def _publish(self, record: TestRecord) -> None:
        policy = self._random.choice([AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER])
        partition = self._config.partition
        self._recorder.send(self._maker.producer, partition, [record], policy)
        with self._changed:
            self._waiting.add(record.name)
        self._client.publish_async(
            self._config.stream,
            record.value or b"",
            key=record.key,
            headers={name: value or b"" for name, value in record.headers or ()},
            partition=partition,
            policy=policy,
            correlation_id=record.name,
            callback=lambda ack, error: self._answered(record.name, ack, error),
        )

    def _answered(self, name: str, ack: PublishAck | None, error: HeadwaterError | None) -> None:
        """Note an answer; on the client's thread."""
        if ack is not None:
            self._recorder.ack(
                name,
                partition=self._config.partition,
                offset=ack.offset,
                leader_epoch=NOBODY,  # the API tells none
                duplicate=False,
            )
        elif isinstance(error, UnavailableError) and not isinstance(error, CommitTimeoutError):
            self._recorder.refuse(name, str(error))  # no server has taken it
        elif not isinstance(error, CommitTimeoutError) and not self._ending.is_set():
            self.failure = f"{name} was refused: {type(error).__name__}: {error}"
        with self._changed:
            self._waiting.discard(name)


class SeenMessages:
    """What a subscriber was given, in its order; one thread adds."""

    def __init__(self, name: str, partition: int) -> None:
        self._name, self._partition = name, partition
        self._offsets, self._views, self._at_ns = array("q"), array("q"), array("q")

    def add(self, message: Message) -> None:
        """Note a message, when it has come."""
        self._at_ns.append(time.monotonic_ns())
        self._offsets.append(message.offset)
        stamp_us = message.timestamp_ns // 1_000
        self._views.append(_view(stamp_us, message.key, message.value, message.headers))

    def tell(self, held: Iterable[pa.RecordBatch], recorder: ChaosRecorder) -> None:
        """Tell the recorder what was seen; ``held`` is what the log has in the end.

        The API shows less of a record than the log has: no leader epoch, and no difference between
        an empty key and none. So a message that looks as the log's record of its offset does is
        told as this record; any other one as a record that nobody has sent, under no epoch. Those
        are told in polls of their own, so that each has a time before or after an unclean election.
        """
        known = _rows_by_offset(held, self._partition)
        recorder.seek(self._name, self._partition, 0)
        for first in range(0, len(self._offsets), _POLL_ROWS):
            places = range(first, min(first + _POLL_ROWS, len(self._offsets)))
            seen = [(self._row(known, place), self._at_ns[place]) for place in places]
            for _, run in itertools.groupby(seen, lambda one: one[0].leader_epoch == NOBODY):
                rows, at_ns = zip(*run, strict=True)
                recorder.polled(self._name, self._partition, rows, began_ns=0, at_ns=at_ns[-1])
        recorder.follow_to_the_end(self._name, self._partition)

    def _row(self, known: dict[int, tuple[Row, int]], place: int) -> Row:
        offset = self._offsets[place]
        row, view = known.get(offset, (None, 0))
        if row is not None and view == self._views[place]:
            return row
        return Row(offset, b"%b %d" % (_STRANGE, offset), NOBODY)


class LiftFollow:
    """One subscriber, from the first message on, over every failover, in a thread of its own."""

    def __init__(self, addresses: str, stream: str, partition: int, login: Login = OPEN) -> None:
        self._stream, self._partition = stream, partition
        self._client = login.liftbridge(addresses)
        self.name = f"liftbridge{partition}"
        self.position = 0
        self.failure: str | None = None
        self._seen = SeenMessages(self.name, partition)
        self._moved = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def wait_for(self, end: int, timeout_s: float) -> bool:
        """Block until everything below ``end`` was read; return whether it was."""
        with self._moved:
            return self._moved.wait_for(lambda: self.position >= end, timeout_s)

    def stop(self) -> None:
        """End the thread and the client. Blocks."""
        self._ending.set()
        self._client.close()
        self._thread.join(30)

    def tell(self, client: Client, recorder: ChaosRecorder) -> None:
        """Tell the recorder what was seen; call it after all load."""
        with client.fetch(self._stream, self._partition, "earliest", columns=COLUMNS) as fetch:
            self._seen.tell((one.batch for one in fetch), recorder)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with suppress(CancelledError, NotLeaderError, UnavailableError):
                    self._subscribe()
            except HeadwaterError as error:
                if not self._ending.is_set():
                    self.failure = f"{self.name}: {type(error).__name__}: {error}"
                return
            self._ending.wait(_AGAIN_S)

    def _subscribe(self) -> None:
        start = Since.offset(self.position) if self.position else Since.earliest()
        for message in self._client.subscribe(self._stream, self._partition, start=start):
            self._seen.add(message)
            with self._moved:
                self.position = message.offset + 1
                self._moved.notify_all()


def _rows_by_offset(held: Iterable[pa.RecordBatch], partition: int) -> dict[int, tuple[Row, int]]:
    """Return each row of a partition, and how Liftbridge's API shows it."""
    found: dict[int, tuple[Row, int]] = {}
    for batch in held:
        table = pa.Table.from_batches([batch])
        rows = columns_by_partition(table)[partition]
        columns = zip(
            rows.offsets.tolist(),
            rows.fingerprints,
            rows.leader_epochs.tolist(),
            rows.timestamps_us.tolist(),
            _views_of(table),
            strict=True,
        )
        found.update({row[0]: (Row(*row), view) for *row, view in columns})
    return found


def _views_of(table: pa.Table) -> Iterator[int]:
    stamps = table.column("timestamp").cast(pa.int64())
    names = ("key", "value", "headers", "subject", "reply_subject")
    columns = [stamps.to_pylist(), *(table.column(name).to_pylist() for name in names)]
    for stamp_us, key, value, headers, subject, reply in zip(*columns, strict=True):
        named = {one["key"]: one["value"] or b"" for one in headers or ()}
        yield _view(stamp_us, key, value, {**named, **_added(subject, reply)})


def _added(subject: str | None, reply: str | None) -> dict[str, bytes]:
    """Return the headers that the API adds."""
    return {"subject": (subject or "").encode(), "reply": (reply or "").encode()}


def _view(stamp_us: int, key: Any, value: Any, headers: Mapping[str, bytes]) -> int:
    return hash((stamp_us, key or b"", value or b"", frozenset(headers.items())))
