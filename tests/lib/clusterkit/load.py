"""A producer and a reader that run beside a test, and the promises made to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from broker.model.records import AppendResult
from headwater.client.client import Client
from headwater.client.fetch import Fetch

_PATIENCE_S: Final = 90.0  # a leader is found later on a busy machine


class Load:
    """One producer that sends numbered records, one batch each, until it is told to stop."""

    def __init__(self, client: Client, stream: str, *, every_s: float) -> None:
        self.sent: list[bytes] = []
        self.acked: list[tuple[int, bytes]] = []
        self._progress = threading.Condition()
        self._stop = threading.Event()
        self._every_s = every_s
        self._producer = client.producer(
            stream, window_batches=8, retry_ms_max=int(_PATIENCE_S * 1000)
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._producer as producer:
                while not self._stop.wait(self._every_s):
                    value = b"%08d" % len(self.sent)
                    self.sent.append(value)
                    future = producer.send([value])
                    future.add_done_callback(self._noting(value))
        except BaseException as failure:  # noqa: BLE001 - raised where the test waits
            self._failure = failure
            with self._progress:
                self._progress.notify_all()

    def _noting(self, value: bytes) -> Callable[[Future[AppendResult]], None]:
        def note(done: Future[AppendResult]) -> None:
            if done.exception() is None:
                with self._progress:
                    self.acked.append((done.result().base_offset, value))
                    self._progress.notify_all()

        return note

    def wait_acked(self, more: int) -> None:
        """Wait until so many more records are acknowledged."""
        with self._progress:
            wanted = len(self.acked) + more
            ok = self._progress.wait_for(
                lambda: len(self.acked) >= wanted or self._failure is not None, _PATIENCE_S
            )
        assert self._failure is None, self._failure
        assert ok, f"only {len(self.acked)} of {wanted} records were acknowledged"

    def stop(self) -> None:
        """End; everything sent is acknowledged or failed."""
        self._stop.set()
        self._thread.join()


@contextmanager
def load(client: Client, stream: str, *, every_s: float = 0.002) -> Iterator[Load]:
    """Run a load beside the test."""
    running = Load(client, stream, every_s=every_s)
    try:
        yield running
    finally:
        running.stop()


def publish(client: Client, stream: str, *values: bytes) -> None:
    """Store the values as one batch of partition 0; return when they are acknowledged."""
    with client.producer(stream, 0, retry_ms_max=int(_PATIENCE_S * 1000)) as producer:
        producer.send(list(values)).result(_PATIENCE_S)


def stored(client: Client, stream: str) -> list[bytes]:
    """Return the values of a partition, in order."""
    return [value for part in client.fetch(stream) for value in part.batch["value"].to_pylist()]


def check(client: Client, stream: str, done: Load) -> None:
    """Every record is there once, in the order of sending, at the offset that was told."""
    found = stored(client, stream)
    assert found == done.sent
    assert all(found[offset] == value for offset, value in done.acked)
    assert len(done.acked) == len(done.sent)


class Following:
    """Reads a partition's live tail on a thread of its own."""

    def __init__(self, fetch: Fetch) -> None:
        self.values: list[bytes] = []
        self.failure: BaseException | None = None
        self._fetch = fetch
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="following")
        self._thread.start()

    def _run(self) -> None:
        try:
            for part in self._fetch:
                with self._changed:
                    self.values += part.batch["value"].to_pylist()
                    self._changed.notify_all()
        except BaseException as failure:  # noqa: BLE001 - looked at by the test
            with self._changed:
                self.failure = failure
                self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until so many records have come."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.values) >= count or self.failure is not None, _PATIENCE_S
            )
        assert self.failure is None, self.failure
        assert len(self.values) >= count, f"{len(self.values)} of {count} records came"

    def wait_failure(self) -> BaseException:
        """Wait until the read has failed."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.failure is not None, _PATIENCE_S)
            assert came, "no error came"
        assert self.failure is not None
        return self.failure

    def stop(self) -> None:
        """End the read."""
        self._fetch.cancel()
        self._thread.join()
