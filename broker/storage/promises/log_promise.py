"""The promise of one open log, see ``promises.py``. Owner: the thread that writes the log."""

from __future__ import annotations

from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.log_folder import LogFolder
from broker.storage.promises.promised_batch import NO_MARK, mark_before, mark_of
from broker.storage.promises.promises import HELD, Promised, ReplicaPromise
from broker.storage.segments.log_reader import LogState


class LogPromise:
    """A replica's slot, if the log has one. Without a slot (in a tool) nothing is promised."""

    def __init__(self, replica: ReplicaPromise | None) -> None:
        """Bind to the slot; nothing is promised before :meth:`begin`."""
        self._replica = replica
        self._last = (Offset(0), NO_MARK)  # end and mark of the newest batch
        self.begun = replica is None

    def known(self, *, held: bool) -> Promised | None:
        """Return the earlier promise; ``held``: the metadata says that a log must be here."""
        found = None if self._replica is None else self._replica.promised
        return HELD if found is None and held else found

    def ends_with(self, batch: BatchHeader | PreparedBatch, end: Offset) -> None:
        """Note the batch that was written last; the log ends at ``end`` now."""
        self._last = (end, mark_of(batch, end))

    def look_back(self, folder: LogFolder, state: LogState, index_interval_bytes: int) -> None:
        """Read the last batch of a healthy log and note its mark, unless a mark is noted. Blocks.

        An earlier process wrote this batch. If the slot has a mark for this end, recovery compared
        the batch with it when the log was opened.
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
        """Note that the broker holds the log; raises OSError while a full disk refuses the slot."""
        if self._replica is not None:
            self._replica.begin(start, end, _epoch_before(epochs, end), self._mark_at(end))
            self.begun = True

    def synced(self, start: Offset, end: Offset, epochs: EpochHistory) -> None:
        """Promise the synced records, before they are acknowledged."""
        if self._replica is not None and self.begun:
            self._replica.promise(start, end, _epoch_before(epochs, end), self._mark_at(end))

    def _mark_at(self, end: Offset) -> int:
        return self._last[1] if self._last[0] == end else NO_MARK

    def lower(self, end: Offset, epochs: EpochHistory) -> None:
        """Lower the promise to ``end``, durably, before the log is cut.

        A promise above the end of its log would be reported as a loss of records. A crash between
        the two steps leaves a log that is longer than its promise, which is harmless.
        """
        if self._replica is not None:
            self._replica.lower(end, _epoch_before(epochs, end))

    def renew(self) -> None:
        """Note durably that the log is about to be replaced, so that its absence is no loss."""
        if self._replica is not None:
            self._replica.renew()


def _epoch_before(epochs: EpochHistory, end: Offset) -> LeaderEpoch:
    return epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)
