"""Places for long calls: how many of a kind may be open, in all and on one connection."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from broker.errors import OverloadedError


class Places:
    """Counts the open calls of one kind. Any thread."""

    def __init__(self, what: str, places_max: int, *, of_connection_max: int | None = None) -> None:
        """Offer ``places_max`` places for ``what``, which the refusals name."""
        self._what = what
        self._places_max = places_max
        self._of_connection_max = of_connection_max or places_max
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()  # by connection
        self.taken_count = 0

    @contextmanager
    def take(self, connection: str = "") -> Iterator[int]:
        """Hold a place during the block; return how many are taken then, this one included.

        Raises:
            OverloadedError: there is none, or this connection has as many as it may.
        """
        with self._lock:
            for taken, most, where in (
                (self.taken_count, self._places_max, "on this broker"),
                (self._taken[connection], self._of_connection_max, "on this connection"),
            ):
                if taken >= most:
                    if not self._taken[connection]:
                        del self._taken[connection]
                    raise OverloadedError(
                        f"{most} {self._what} are open {where}: try again later", limit=most
                    )
            self.taken_count += 1
            self._taken[connection] += 1
            count = self.taken_count
        try:
            yield count
        finally:
            with self._lock:
                self.taken_count -= 1
                self._taken[connection] -= 1
                if not self._taken[connection]:
                    del self._taken[connection]
