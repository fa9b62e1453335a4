"""One do_put call of a producer: its callers write batches, a thread of its own reads answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from broker.codec.flight.protocol import StreamPath, decode_ack, encode_put_mark, is_ready
from broker.errors import HeadwaterError, UnavailableError
from broker.model.records import AppendResult
from headwater.client import open_calls
from headwater.client.flight_connection import Connection
from headwater.client.window import WindowEntry


class PutSession:
    """One connection with one do_put; :meth:`start` makes the thread that reads answers.

    The session closes the connection, also if it cannot begin.
    """

    def __init__(self, connection: Connection, path: StreamPath, schema: pa.Schema) -> None:
        # The producer sets these, under its lock.
        self.over = False
        self.cause: HeadwaterError | None = None  # of the end, once it is over
        self.progressed = False  # a batch was settled
        self.refusal: HeadwaterError | None = None  # the last answer that is worth a retry
        self.write_error: HeadwaterError | None = None  # a batch could not be sent because of it
        self._connection = connection
        try:
            self._call = connection.put(path, schema)
        except BaseException:
            connection.close()  # else its descriptors stay until the process ends
            raise
        self._ready = threading.Event()  # the broker accepts batches, or the call has ended
        self._guard = threading.Lock()  # one write, finish or close at a time
        self._finish_wanted = False
        self._finished = False
        self._thread: threading.Thread | None = None

    def start(
        self,
        answered: Callable[[PutSession, AppendResult | HeadwaterError | None], None],
        ended: Callable[[PutSession, HeadwaterError | None], None],
    ) -> None:
        """Begin to read answers; ``ended`` is called last, once.

        Raises:
            UnavailableError: the system has no thread left.
        """
        thread = threading.Thread(
            target=self._read, args=(answered, ended), name="headwater-acks", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as cause:
            self._connection.close()
            raise UnavailableError(f"a broker's answers cannot be read: {cause}") from cause
        self._thread = thread
        open_calls.process.note(self)

    def write(self, entry: WindowEntry) -> bool:
        """Send a batch; False if the call is finished already, so that nothing was sent.

        True means that the connection has taken the batch, not that the broker has it.

        Raises:
            InvalidRequestError: this client does not send such a batch; the call goes on.
            HeadwaterError: it is not known whether the batch was sent.
        """
        mark = encode_put_mark(entry.producer_id, entry.base_sequence)
        try:
            with self._guard:
                if not self._finished:
                    self._call.write(entry.batch, mark)
                    return True
            return False
        finally:
            self._finish_if_wanted()

    def wait_ready(self) -> None:
        """Wait until the broker has accepted the call, or ended it; under NONE only."""
        self._ready.wait()

    def finish(self) -> None:
        """Tell the broker that no more batches come. Never waits for a blocked write."""
        self._finish_wanted = True
        self._finish_if_wanted()

    def leave(self) -> None:
        """See ``OpenCall.leave``: the broker answers what it has, and ends the call."""
        self.finish()

    def join(self, timeout_ms: int) -> bool:
        """Wait for the reading thread; tell whether it has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_ms / 1000)
        return self._thread is None or not self._thread.is_alive()

    def _finish_if_wanted(self) -> None:
        # A thread that holds the guard checks `_finish_wanted` after its release, so that a
        # finish that is requested meanwhile is not forgotten.
        while self._finish_wanted and not self._finished and self._guard.acquire(blocking=False):
            try:
                if not self._finished:
                    self._finished = True
                    with suppress(HeadwaterError):  # the call is over: the reading thread is told
                        self._call.finish()
            finally:
                self._guard.release()

    def _read(
        self,
        answered: Callable[[PutSession, AppendResult | HeadwaterError | None], None],
        ended: Callable[[PutSession, HeadwaterError | None], None],
    ) -> None:
        cause: HeadwaterError | None = None
        try:
            while (frame := self._call.read()) is not None:
                if is_ready(frame):
                    self._ready.set()
                else:
                    answered(self, decode_ack(frame))
        except HeadwaterError as error:
            cause = error
        try:
            with self._guard:
                self._finished = True
                self._call.close()
        except HeadwaterError as error:
            cause = cause or error
        self._connection.close()
        self._ready.set()  # before ``ended``, which may wait for a thread in ``wait_ready``
        ended(self, cause)
