"""What an open log promises of itself: see ``promises.py``. Owner: who writes the log."""

from __future__ import annotations

from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.log.folder import LogFolder
from broker.storage.log.log_reader import LogState
from broker.storage.promises.promised_batch import NO_MARK, mark_before, mark_of
from broker.storage.promises.promises import HELD, Promised, ReplicaPromise


class LogPromise:
    """A replica's slot, if the log has one; without it nothing is promised, e.g. by a tool."""

    def __init__(self, replica: ReplicaPromise | None) -> None:
        """Promise nothing before :meth:`begin`."""
        self._replica = replica
        self._last = (Offset(0), NO_MARK)  # the newest batch: its end and its mark
        self.begun = replica is None

    def known(self, *, held: bool) -> Promised | None:
        """Return what was promised before; ``held`` is the metadata's word that a log is here."""
        found = None if self._replica is None else self._replica.promised
        return HELD if found is None and held else found

    def ends_with(self, batch: BatchHeader | PreparedBatch, end: Offset) -> None:
        """Hear which batch was written last; the log ends at ``end`` now."""
        self._last = (end, mark_of(batch, end))

    def look_back(self, folder: LogFolder, state: LogState, index_interval_bytes: int) -> None:
        """Look which batch a healthy log ends with, unless its mark is noted. Blocks.

        An earlier process wrote the batch. A mark that is noted for this end was compared with it
        when the log was opened.
        """
        if self._replica is None:
            return
        end, noted = state.log_end, self._replica.promised
        if noted is not None and noted.mark and noted.end == end:
            self._last = (end, noted.mark)
            return
        mark = mark_before(folder, state, end, index_interval_bytes)
        self._last = (end, mark or NO_MARK)

    def begin(self, start: Offset, end: Offset, epochs: EpochHistory) -> None:
        """Say that the log is held; raises OSError while there is no room for it."""
        if self._replica is not None:
            self._replica.begin(start, end, _epoch_before(epochs, end), self._mark_at(end))
            self.begun = True

    def synced(self, start: Offset, end: Offset, epochs: EpochHistory) -> None:
        """Promise what is synced, before anybody hears of it."""
        if self._replica is not None and self.begun:
            self._replica.promise(start, end, _epoch_before(epochs, end), self._mark_at(end))

    def _mark_at(self, end: Offset) -> int:
        return self._last[1] if self._last[0] == end else NO_MARK

    def lower(self, end: Offset, epochs: EpochHistory) -> None:
        """Take back what is above ``end``, durably, before the log is cut.

        A promise that outlived its records would be taken for their loss. A crash in between leaves
        a log that is longer than its promise.
        """
        if self._replica is not None:
            self._replica.lower(end, _epoch_before(epochs, end))

    def renew(self) -> None:
        """Take everything back, durably, before the log is replaced."""
        if self._replica is not None:
            self._replica.renew()


def _epoch_before(epochs: EpochHistory, end: Offset) -> LeaderEpoch:
    return epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)
