"""A consumer that follows a partition from its beginning, over every failover.

What it is given goes into the history as polls of one session: the next offset is always due,
whoever leads. When a read ends because a broker is gone, or leads no more, it asks again from where
it was; any other error is a failure of the run.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pyarrow as pa

from broker.errors import FencedError, HeadwaterError, TruncatedError, UnavailableError
from chaoskit.recorder import ChaosRecorder
from checkkit.arrow import COLUMNS, columns_by_partition
from clusterkit.login import OPEN, Login
from headwater.client import Client, Fetch

_PAUSE_S = 0.1


class FollowLoad:
    """One consumer in a thread of its own."""

    def __init__(
        self,
        url: str,
        stream: str,
        partition: int,
        recorder: ChaosRecorder,
        login: Login = OPEN,
    ) -> None:
        self._url, self._stream, self._partition = url, stream, partition
        self._login = login
        self._recorder = recorder
        self.name = f"follower{partition}"
        self.position = 0
        self.restarts = 0
        self._epoch: int | None = None  # of the record before the position
        self.failure: str | None = None
        self._ending = threading.Event()
        self._moved = threading.Condition()
        self._fetch: Fetch | None = None
        recorder.seek(self.name, partition, 0)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def wait_for(self, end: int, timeout_s: float) -> bool:
        """Block until everything below ``end`` was read; return whether it was."""
        with self._moved:
            return self._moved.wait_for(lambda: self.position >= end, timeout_s)

    def stop(self) -> None:
        """End the thread. Blocks."""
        self._ending.set()
        fetch = self._fetch
        if fetch is not None:
            fetch.cancel()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with (
                    suppress(UnavailableError, FencedError),
                    self._login.client(self._url) as client,
                ):
                    self._follow(client)
            except TruncatedError as error:  # an operator gave up what it had read
                self._recorder.truncated(self.name, self._partition, int(error.end))
                self.position, self._epoch = int(error.end), None
            except HeadwaterError as error:  # a gap, an offset out of range: never to be seen
                if not self._ending.is_set():
                    self.failure = f"{self.name}: {type(error).__name__}: {error}"
                return
            self.restarts += 1
            self._ending.wait(_PAUSE_S)

    def _follow(self, client: Client) -> None:
        began_ns = time.monotonic_ns()
        with client.fetch(
            self._stream,
            self._partition,
            self.position,
            columns=COLUMNS,
            follow=True,
            leader_epoch=self._epoch,
        ) as fetch:
            self._fetch = fetch
            for one in fetch:
                table = pa.Table.from_batches([one.batch])
                rows = columns_by_partition(table)[self._partition]
                self._recorder.polled(self.name, self._partition, rows, began_ns=began_ns)
                with self._moved:
                    self.position = int(one.end_offset)
                    self._epoch = fetch.leader_epoch
                    self._moved.notify_all()
                began_ns = time.monotonic_ns()
                if self._ending.is_set():
                    return
