"""Claims: one small object beside the table for each start of leadership of a partition.

The key is ``_headwater/lineage/<partition>/<leader epoch:020>.json``. The object is created if
absent and never changed. A process that begins to lead reads the newest claim, which has to belong
to its own history, and then creates its own claim. If a history was copied, only one of the two
copies can claim: either both want the same epoch, or the second one finds a claim that its metadata
does not know. See docs/decisions/0016.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import (
    CorruptDataError,
    ForeignHistoryError,
    HistoryClaimedError,
    ObjectCorruptError,
    ObjectMissingError,
)
from broker.model.ids import PartitionId
from broker.model.lineage import Leadership, Lineage, holds, is_lineage_id
from broker.model.offsets import OffsetRange
from tiering.proof.history import newest_range
from tiering.table.ledger import Ledger
from tiering.table.table import Table

CLAIM_PREFIX: Final = "_headwater/lineage"
_FORMAT: Final = 1
_BYTES_MAX: Final = 16 * 1024
_KEY: Final = re.compile(r"_headwater/lineage/(\d+)/(\d{20})\.json\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The content of a claim, which a process writes when it begins to lead."""

    cluster: str
    stream_uuid: str
    partition: int
    leader_epoch: int
    lineage_id: str
    start: int
    parent_epoch: int  # leader epoch of the leadership before; -1: there was none
    parent_id: str
    broker: str
    time_us: int

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return json.dumps({"v": _FORMAT, **asdict(self)}, sort_keys=True).encode() + b"\n"


def claim_key(partition: int, leader_epoch: int) -> str:
    """Return the key of a claim, below the table."""
    return f"{CLAIM_PREFIX}/{partition}/{leader_epoch:020}.json"


def claim_of(
    lineage: Lineage, partition: PartitionId, *, cluster: str, broker: str, time_us: int
) -> Claim:
    """Return the claim of a lineage's newest leadership."""
    own = lineage[-1]
    parent = lineage[-2] if len(lineage) > 1 else None
    return Claim(
        cluster=cluster,
        stream_uuid=partition.stream_uuid,
        partition=int(partition.number),
        leader_epoch=int(own.leader_epoch),
        lineage_id=own.lineage_id,
        start=int(own.start),
        parent_epoch=-1 if parent is None else int(parent.leader_epoch),
        parent_id="" if parent is None else parent.lineage_id,
        broker=broker,
        time_us=time_us,
    )


class ClaimBook:
    """The claims of one partition, in its table's store. Blocking; any thread."""

    def __init__(self, table: Table, partition: PartitionId) -> None:
        """Use the store of the stream's table."""
        self._table = table
        self._store = table.store
        self._partition = partition
        self._number = int(partition.number)

    def settle(self, lineage: Lineage, claim: Claim, executor: Executor, *, cold_end: int) -> None:
        """Claim the history for the newest leadership; repeating the same claim is harmless.

        ``cold_end`` is the cold end of this history that the metadata has recorded.

        The cost is one LIST and one small GET; at the same time, on ``executor``, one LIST of the
        ledger and one read of the table's log; then one PUT.

        Raises:
            HistoryClaimedError: another process leads a copy of the history.
            ForeignHistoryError: the table holds records beyond the end of the local log.
            RemoteTierUnavailableError: the outcome is unknown.
        """
        own = lineage[-1]
        noted = executor.submit(self._require_log_not_behind, lineage, cold_end)
        committed = executor.submit(self._require_log_not_behind_table, lineage)
        listed = self._epochs(above=int(lineage[0].leader_epoch) - 1)
        self._require_none_newer(lineage, listed)
        below = [epoch for epoch in listed if epoch < own.leader_epoch]
        if below:
            self._require_in(lineage, below[-1])
        noted.result()
        committed.result()
        body = claim.encode()
        key = claim_key(self._number, int(own.leader_epoch))
        if not self._store.put_if_absent(key, body, crc32c=crc32c(body)):
            self._require_in(lineage, int(own.leader_epoch))

    def look(self, lineage: Lineage, *, thorough: bool) -> None:
        """Check that no other process has claimed the history since; errors as for :meth:`settle`.

        A copy usually takes the next epoch, so only that key is requested. ``thorough`` lists all.
        """
        own = int(lineage[-1].leader_epoch)
        if thorough:
            self._require_none_newer(lineage, self._epochs(above=own))
            return
        try:
            self._store.head(claim_key(self._number, own + 1))
        except ObjectMissingError:
            return
        self._require_in(lineage, own + 1)

    # ------------------------------------------------------------------ inside

    def _epochs(self, *, above: int) -> list[int]:
        start_after = claim_key(self._number, above) if above >= 0 else ""
        listed = self._store.list(f"{CLAIM_PREFIX}/{self._number}/", start_after=start_after)
        return [int(match[2]) for info in listed if (match := _KEY.match(info.key))]

    def _require_none_newer(self, lineage: Lineage, listed: list[int]) -> None:
        newer = [epoch for epoch in listed if epoch > lineage[-1].leader_epoch]
        if newer:
            self._require_in(lineage, newer[-1])

    def _require_in(self, lineage: Lineage, epoch: int) -> None:
        """Refuse a claim whose leadership does not belong to our history."""
        found = self._read(epoch)
        ours = any(_is(one, found) for one in lineage)
        if found["stream_uuid"] == self._partition.stream_uuid and ours:
            return
        raise HistoryClaimedError(
            f"broker {found['broker']!r} leads a copy of {self._partition}: it claimed leader "
            f"epoch {epoch} in the lake with lineage id {found['lineage_id']}, which is not in "
            "this broker's history. This partition takes no writes and ships nothing; stop one of "
            "the two brokers",
            partition=str(self._partition),
            leader_epoch=epoch,
            lineage_id=found["lineage_id"],
            broker=found["broker"],
        )

    def _read(self, epoch: int) -> dict[str, Any]:
        key = claim_key(self._number, epoch)
        body = self._store.get(key, None, None)
        try:
            values = json.loads(body) if len(body) <= _BYTES_MAX else None
        except (ValueError, RecursionError):
            values = None
        if (
            not isinstance(values, dict)
            or values.get("v") != _FORMAT
            or values.get("leader_epoch") != epoch
            or not is_lineage_id(str(values.get("lineage_id")))
            or not isinstance(values.get("broker"), str)
            or not isinstance(values.get("stream_uuid"), str)
        ):
            raise ObjectCorruptError(f"{key} is not a readable claim", key=key)
        return values

    def _require_log_not_behind(self, lineage: Lineage, cold_end: int) -> None:
        """Refuse to lead with an older copy of the log: the ledger has ranges beyond its end.

        Such a range may begin below the log's end: if the copy was taken in the middle of a
        segment, that segment was shipped later, when it was longer. The range begins at the
        copy's cold end, or above.
        """
        start = int(lineage[-1].start)
        entry = Ledger(self._store).first_beyond(self._number, start, above=cold_end)
        if entry is None or holds(lineage, entry.lineage_id, entry.end):
            return
        raise self._older_copy(entry.range, start)

    def _require_log_not_behind_table(self, lineage: Lineage) -> None:
        """Refuse to lead with a log that ends below the table, ledger entries or not.

        A commit lacks its ledger entry if its process died, or has not written the entry yet. If
        the table is damaged, this check passes: the shipper reports the damage.
        """
        start, number = lineage[-1].start, self._number
        try:
            if self._table.cold_ends().get(number, 0) <= start:
                return
            snapshot = self._table.find()
            newest = None if snapshot is None else newest_range(self._table, snapshot, number)
        except CorruptDataError:
            return
        if snapshot is None or snapshot.cold_end(number) <= start:
            return
        if newest is None or not holds(lineage, newest.lineage_id, newest.end):
            beyond = OffsetRange(start, snapshot.cold_end(number))
            raise self._older_copy(beyond if newest is None else newest.range, start)

    def _older_copy(self, given: OffsetRange, start: int) -> ForeignHistoryError:
        return ForeignHistoryError(
            f"the table of {self._partition} holds {given}, but the local log ended at {start} "
            "when this broker began to lead: the log is an older copy of the history. This "
            "partition takes no writes and ships nothing",
            partition=str(self._partition),
            expected=start,
            found=int(given.end),
        )


def _is(one: Leadership, found: dict[str, Any]) -> bool:
    return (one.lineage_id, int(one.leader_epoch)) == (found["lineage_id"], found["leader_epoch"])
