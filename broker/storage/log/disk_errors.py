"""Translation of disk errors into errors of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from broker.errors import HeadwaterError, LogFailedError
from broker.storage.no_room import lacks_room, no_room


class DiskErrors:
    """Translates disk errors. After any error but a lack of room the log takes no more writes.

    A class and not a generator, because each commit enters it three times, and a generator costs
    three times as much.
    """

    __slots__ = ("_fail", "_fatal", "_path", "_what")

    def __init__(
        self,
        fail: Callable[[str], None],
        path: str,
        what: str,
        *,
        fatal: bool,
    ) -> None:
        """Translate the errors of one operation, ``what``, on the log in the folder ``path``.

        ``fail`` is called with the reason if the log takes no more writes from now on. With
        ``fatal`` a lack of room has this effect too.
        """
        self._fail, self._path, self._what, self._fatal = fail, path, what, fatal

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        """Translate an OSError into a HeadwaterError.

        Raises:
            NoRoomError: nothing was changed, or the caller does the operation again.
            LogFailedError: the log takes no more writes.
        """
        if isinstance(cause, LogFailedError):  # of the promises: no record may be acknowledged now
            self._fail(cause.message)
        if not isinstance(cause, OSError):
            return
        path = self._path
        if lacks_room(cause) and not self._fatal:
            raise no_room(f"{self._what} of {path}", cause, path=path) from cause
        reason = f"{self._what} of {path} failed: {cause}"
        self._fail(reason)
        raise LogFailedError(reason, path=path) from cause


@contextmanager
def closed_after_error(close: Callable[[], None]) -> Iterator[None]:
    """Close what was opened, if the block raises: nobody else will."""
    try:
        yield
    except BaseException:
        with suppress(HeadwaterError):  # the first error says more
            close()
        raise
