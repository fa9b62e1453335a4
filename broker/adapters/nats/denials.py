"""What the NATS server does not allow the broker: read from ``-ERR`` lines, logged, kept a while.

The server tells a denial when a subscription is made, when a permission is taken away later, and
when a message is published. It quotes the subject as Go's ``%q`` does. A server may send as many
denials as it likes, and a publisher can bring them about by its reply subjects. So the lines in the
log are bounded in time, and the subjects that are kept by number and length.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

_DENIAL: Final = re.compile(
    r'permissions violation for (subscription|publish)\b[^"]*"((?:[^"\\]|\\.)*)"', re.IGNORECASE
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U((?:0000|0010)[0-9a-f]{4}|000[1-9a-f][0-9a-f]{4})|(.))"
)
_BY_LETTER: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_UNKNOWN: Final = "\ufffd"
_KEPT_MAX: Final = 1024  # subjects; the oldest is forgotten
_KEPT_CHARS_MAX: Final = 1024  # of one subject; the broker subscribes to no longer one
_TOLD_CHARS_MAX: Final = 256  # in a line of the log
_LINES_MAX: Final = 10  # of one kind within the time below
_LINES_S: Final = 60.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    """What the server has refused."""

    kind: str  # "subscription" or "publish"
    subject: str

    @classmethod
    def read(cls, text: str) -> Denial | None:
        """Return the denial that the text of an ``-ERR`` line tells; None if it tells another."""
        found = _DENIAL.match(text)
        if found is None:
            return None
        return cls(found[1].lower(), _ESCAPE.sub(_unescaped, found[2]))


def _unescaped(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return _BY_LETTER.get(found[4], found[4])
    code = int(digits, 16)
    return _UNKNOWN if 0xD800 <= code < 0xE000 else chr(code)  # half a pair cannot be written


class DeniedSubjects:
    """The subjects of one connection to which the server refused a subscription last."""

    def __init__(self) -> None:
        """Begin with none."""
        self._subjects: dict[str, None] = {}  # the newest is the last one

    def add(self, subject: str) -> None:
        """Keep a subject until it is asked for again."""
        if len(subject) > _KEPT_CHARS_MAX:
            return
        self._subjects.pop(subject, None)
        self._subjects[subject] = None
        if len(self._subjects) > _KEPT_MAX:
            del self._subjects[next(iter(self._subjects))]

    def ask_again(self, subjects: Iterable[str]) -> None:
        """Forget what the server said of these subjects: the broker subscribes to them now."""
        for subject in subjects:
            self._subjects.pop(subject, None)

    def __contains__(self, subject: str) -> bool:
        return subject in self._subjects


class DenialLog:
    """Logs the denials of a transport, on all of its connections, a few in a minute."""

    def __init__(self, client_name: str, now_s: Callable[[], float] = time.monotonic) -> None:
        """Name the connection in the log as the server knows it."""
        self._client_name = client_name
        self._now_s = now_s
        self._windows: dict[str, _Window] = {}  # by kind of denial

    def tell(self, denial: Denial) -> None:
        """Log a denial, unless there were many of its kind within the last minute."""
        now_s = self._now_s()
        window = self._windows.setdefault(denial.kind, _Window(now_s))
        if now_s - window.since_s >= _LINES_S:
            window.since_s, window.lines = now_s, 0
        if window.lines >= _LINES_MAX:
            window.left_out += 1
            return
        window.lines += 1
        left_out, window.left_out = window.left_out, 0
        _log.warning(
            "nats_denied",
            kind=denial.kind,
            subject=denial.subject[:_TOLD_CHARS_MAX],
            connection=self._client_name,
            left_out=left_out,
            advice="give the broker's NATS user this permission (docs/security.md)",
        )


@dataclass(slots=True)
class _Window:
    """The lines about one kind of denial within the present minute."""

    since_s: float
    lines: int = 0
    left_out: int = 0  # denials since the last line
