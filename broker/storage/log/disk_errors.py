"""Translation of disk errors into errors of a log."""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import DiskFullError, LogFailedError
from broker.storage.log_folder import is_full


class DiskErrors:
    """Translates disk errors. After any error but a full disk the log takes no more writes.

    This is a class because a commit enters it three times: a generator would cost three times as
    much.
    """

    __slots__ = ("_fail", "_fatal", "_path", "_what")

    def __init__(self, fail: Callable[[str], None], path: str, what: str, *, fatal: bool) -> None:
        """Translate the errors of one operation, ``what``, on the log in the folder ``path``.

        ``fail`` is called with the reason if the log takes no more writes from now on. With
        ``fatal`` a full disk has this effect too.
        """
        self._fail, self._path, self._what, self._fatal = fail, path, what, fatal

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        """Translate an OSError into a HeadwaterError.

        Raises:
            DiskFullError: nothing was changed.
            LogFailedError: the log takes no more writes.
        """
        if isinstance(cause, LogFailedError):  # of the promises: no record may be acknowledged now
            self._fail(cause.message)
        if not isinstance(cause, OSError):
            return
        path = self._path
        if is_full(cause) and not self._fatal:
            raise DiskFullError(
                f"the broker's disk is full: {self._what} of {path}: {cause}", path=path
            ) from cause
        reason = f"{self._what} of {path} failed: {cause}"
        self._fail(reason)
        raise LogFailedError(reason, path=path) from cause
