"""Publishing on NATS subjects, for clients that speak another protocol to the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.errors import HeadwaterError

Answered = Callable[[bytes | HeadwaterError], None]
"""Gets the first message on an inbox, or why there is none. Called on any thread; must be quick."""

Copied = Callable[[bytes], None]
"""Gets each message on an inbox, the first one, too. Called on any thread; must be quick."""


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
        self,
        subject: str,
        data: Callable[[str], bytes],
        answered: Answered,
        copied: Copied | None = None,
    ) -> Callable[[], None]:
        """Publish a request, and pass the first message on its inbox to ``answered``.

        ``data`` gets the name of the inbox and returns the request. The inbox is new, and nobody
        can guess it. There is no time-out: the function that is returned ends the wait. After that
        a request that has not left is not published. ``copied`` gets every message on the inbox,
        also after the wait has ended, until many other requests have been made. Raises as
        :meth:`publish`.
        """
