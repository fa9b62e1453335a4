"""Decides when the leader of an idle partition asks for a pause. Pure.

A partition is idle since its last record, or since its leader began to take records: by its
election, a resume, or an operator who made it writable.
"""

from __future__ import annotations

from typing import Final

ASK_AGAIN_MS: Final = 5_000  # the answer may be lost, or a change of leader may refuse the pause


class Idleness:
    """Watches one partition. One owner calls it, at regular intervals."""

    def __init__(self) -> None:
        """Start without a leader that takes records."""
        self._since_ms: int | None = None
        self._records_count = 0
        self._asked_ms: int | None = None

    def step(
        self,
        now_ms: int,
        *,
        after_ms: int | None,
        takes_records: bool,
        records_count: int,
        watched: bool,
    ) -> bool:
        """Tell whether to ask for a pause now.

        ``after_ms`` is how long it must have been idle; None: it is never paused. ``takes_records``
        is whether this broker leads it, neither paused nor read-only. ``records_count`` grows with
        each record. ``watched``: a reader follows the partition whose presence prevents a pause.
        """
        if not takes_records:
            self._since_ms = self._asked_ms = None
            return False
        if self._since_ms is None or records_count != self._records_count:
            self._since_ms, self._records_count, self._asked_ms = now_ms, records_count, None
        if after_ms is None or watched or now_ms - self._since_ms < after_ms:
            return False
        if self._asked_ms is not None and now_ms - self._asked_ms < ASK_AGAIN_MS:
            return False
        self._asked_ms = now_ms
        return True
