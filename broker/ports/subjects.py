"""Publishing on subjects of NATS, for the clients of another protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.errors import HeadwaterError

Answered = Callable[[bytes | HeadwaterError], None]
"""Gets the first message on an inbox, or why there is none; on any thread, quick."""


class SubjectPublisher(Protocol):
    """Publishes messages on NATS. Any thread; nothing blocks."""

    def publish(self, subject: str, data: bytes) -> None:
        """Publish a message; NATS may lose it.

        Raises:
            InvalidRequestError: the subject has a wildcard, or is none.
            RecordTooLargeError: the message exceeds what NATS takes.
            UnavailableError: there is no connection.
        """

    def ask(
        self, subject: str, data: Callable[[str], bytes], answered: Answered, inbox: str = ""
    ) -> Callable[[], None]:
        """Publish what ``data`` makes of an inbox's name, and wait for one message there.

        ``inbox`` is the asker's own, if it has one. Returns what ends the wait; there is no other
        end if nobody answers. Raises as :meth:`publish`.
        """
