"""Publishing on NATS subjects, for clients that speak another protocol to the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.errors import HeadwaterError

Answered = Callable[[bytes | HeadwaterError], None]
"""Gets the first message on an inbox, or why there is none. Called on any thread; must be quick."""


class SubjectPublisher(Protocol):
    """Publishes messages on NATS. Any thread; nothing blocks."""

    def publish(self, subject: str, data: bytes) -> None:
        """Publish a message; NATS may lose it.

        Raises:
            InvalidRequestError: the subject has a wildcard, or is not a NATS subject.
            RecordTooLargeError: the message exceeds what NATS takes.
            UnavailableError: there is no connection.
        """

    def ask(
        self, subject: str, data: Callable[[str], bytes], answered: Answered, inbox: str = ""
    ) -> Callable[[], None]:
        """Publish a request, and pass the first message on its inbox to ``answered``.

        ``data`` gets the name of the inbox and returns the request. ``inbox`` is the caller's own
        inbox; without it a new one is made. There is no time-out: the function that is returned
        ends the wait. Raises as :meth:`publish`.
        """
