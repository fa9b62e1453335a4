"""The rules by which a claim in the lake is ours, one by one and without a table.

The stories of whole copies are in test_claims.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from broker.codec.checksum import crc32c
from broker.errors import ForeignHistoryError, HistoryClaimedError, ObjectCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.lineage import Leadership, Lineage
from broker.model.offsets import Offset
from simkit.tier.lab import TierLab
from simkit.tier.source import make_stream
from tiering.ship.claims import Claim, ClaimBook, claim_key, claim_of
from tiering.table.ledger import Ledger, LedgerEntry

STREAM = make_stream(partitions=11)
PARTITION = PartitionId(STREAM.uuid, PartitionNumber(1))
FOREIGN = "f" * 32


def leadership(epoch: int, start: int = 0, lineage_id: str = "") -> Leadership:
    """Return a start of leadership; its id is made of its epoch."""
    return Leadership(
        leader_epoch=LeaderEpoch(epoch),
        lineage_id=lineage_id or f"{epoch:032x}",
        start=Offset(start),
    )


class Claims:
    """The claims of one partition, and their store."""

    def __init__(self, root: Path) -> None:
        self.lab = TierLab(root, stream=STREAM)
        self.store = self.lab.table.store
        self.book = ClaimBook(self.lab.table, PARTITION)

    def put(self, one: Leadership, *, number: int = 1, uuid: str = STREAM.uuid) -> Claim:
        """Store the claim of a leadership, of any broker."""
        partition = PartitionId(STREAM.uuid, PartitionNumber(number))
        claim = claim_of((one,), partition, cluster="lab", broker="other", time_us=1)
        self.put_body(replace(claim, stream_uuid=uuid).encode(), int(one.leader_epoch), number)
        return claim

    def put_body(self, body: bytes, epoch: int, number: int = 1) -> None:
        """Store an object in the place of a claim."""
        assert self.store.put_if_absent(claim_key(number, epoch), body, crc32c=crc32c(body))

    def note(self, start: int, end: int, lineage_id: str) -> None:
        """Put a range into the ledger."""
        entry = LedgerEntry(
            partition=1, start=Offset(start), end=Offset(end), records_count=end - start,
            digest="ab" * 32, first_leader_epoch=1, last_leader_epoch=1, min_timestamp_us=1,
            max_timestamp_us=1, path="p", size_bytes=1, crc32c=1, lineage_id=lineage_id,
        )  # fmt: skip
        Ledger(self.store).put(entry)

    def settle(self, *lineage: Leadership, cold_end: int = 0) -> None:
        """Claim the history for its newest leadership."""
        claim = claim_of(lineage, PARTITION, cluster="lab", broker="b", time_us=1)
        with ThreadPoolExecutor(2) as pool:
            self.book.settle(lineage, claim, pool, cold_end=cold_end)


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    """A lake without a claim."""
    return Claims(tmp_path / "lake")


LINEAGE: Lineage = (leadership(5), leadership(6, 10), leadership(7, 20))


@pytest.mark.parametrize("epoch", [5, 6, 7, 8, 9])
def test_a_foreign_claim_at_any_place_is_noticed(claims: Claims, epoch: int) -> None:
    """Below ours, in its place, or above it; a newer claim of ours below it does not hide it."""
    for one in LINEAGE[:-1]:
        if one.leader_epoch < epoch:
            claims.put(one)
    claims.put(leadership(epoch, lineage_id=FOREIGN))
    with pytest.raises(HistoryClaimedError, match="broker 'other' leads a copy") as caught:
        claims.settle(*LINEAGE)
    assert (caught.value.leader_epoch, caught.value.lineage_id) == (epoch, FOREIGN)


def test_an_older_foreign_claim_below_one_of_ours_is_history(claims: Claims) -> None:
    """A later claim of this history was made after it was checked."""
    claims.put(leadership(3, lineage_id=FOREIGN))
    claims.put(LINEAGE[0])
    claims.settle(*LINEAGE)
    claims.settle(*LINEAGE)


@pytest.mark.parametrize("thorough", [False, True])
def test_a_claim_of_the_next_epoch_is_noticed(claims: Claims, thorough: bool) -> None:
    """A quick check and a thorough one see it; a claim further above only the thorough one sees."""
    claims.settle(*LINEAGE)
    claims.book.look(LINEAGE, thorough=thorough)
    claims.put(leadership(9, lineage_id=FOREIGN))
    if thorough:
        with pytest.raises(HistoryClaimedError):
            claims.book.look(LINEAGE, thorough=True)
    else:
        claims.book.look(LINEAGE, thorough=False)
    other = Claims(claims.store.config.root / "other")
    other.settle(*LINEAGE)
    other.put(leadership(8, lineage_id=FOREIGN))
    with pytest.raises(HistoryClaimedError):
        other.book.look(LINEAGE, thorough=thorough)


def test_a_claim_is_ours_by_stream_id_and_epoch_together(claims: Claims) -> None:
    """A claim of another incarnation, or of our id under another epoch, is foreign."""
    other_uuid = "00000000-0000-0000-0000-000000000009"
    stories: dict[str, Callable[[Claims], object]] = {
        "incarnation": lambda one: one.put(LINEAGE[1], uuid=other_uuid),
        "epoch": lambda one: one.put(leadership(6, lineage_id=LINEAGE[0].lineage_id)),
    }
    for place, put in stories.items():
        found = Claims(claims.store.config.root / place)
        put(found)
        with pytest.raises(HistoryClaimedError):
            found.settle(*LINEAGE)


def test_claims_of_partitions_whose_numbers_begin_alike_are_apart(claims: Claims) -> None:
    """Another broker leads partition 10; that does not concern partition 1."""
    claims.put(leadership(6, lineage_id=FOREIGN), number=10)
    claims.put(leadership(9, lineage_id=FOREIGN), number=10)
    claims.settle(*LINEAGE)
    claims.book.look(LINEAGE, thorough=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b'"leader_epoch": 6', b'"leader_epoch": 5'),
        lambda body: body + b" " * 17_000,
        lambda body: body.replace(b'"v": 1', b'"v": 2'),
        lambda body: body.replace(b'"broker": "other"', b'"broker": 1'),
        lambda body: body[:-10],
        lambda _: b"[]",
    ],
)
def test_what_is_no_claim_of_its_epoch_is_an_error(
    claims: Claims, change: Callable[[bytes], bytes]
) -> None:
    """It is neither taken as a claim nor ignored, whatever its size."""
    claim = claim_of((LINEAGE[1],), PARTITION, cluster="lab", broker="other", time_us=1)
    claims.put_body(change(claim.encode()), 6)
    with pytest.raises(ObjectCorruptError, match="is not a readable claim"):
        claims.settle(*LINEAGE)


# ------------------------------------------------------------------------------ the ledger


@pytest.mark.parametrize(
    ("start", "end", "lineage_id", "is_behind"),
    [
        (20, 30, FOREIGN, True),
        (10, 30, FOREIGN, True),  # begins below the log's end, and ends above it
        (25, 30, FOREIGN, True),
        (10, 30, LINEAGE[1].lineage_id, True),  # its leadership ended at 20 in this history
        (10, 20, FOREIGN, False),
        (20, 30, LINEAGE[2].lineage_id, False),
    ],
)
def test_a_log_that_lacks_a_shipped_range_does_not_begin_to_lead(
    claims: Claims, start: int, end: int, lineage_id: str, is_behind: bool
) -> None:
    """The log ended at 20 when this leadership began; the metadata has recorded 10."""
    claims.note(0, 10, LINEAGE[0].lineage_id)
    claims.note(start, end, lineage_id)
    if not is_behind:
        claims.settle(*LINEAGE, cold_end=10)
        return
    with pytest.raises(ForeignHistoryError, match="an older copy"):
        claims.settle(*LINEAGE, cold_end=10)
    assert not list(claims.store.list(claim_key(1, 7)))


def test_a_table_whose_newest_range_nobody_knows_is_not_gone_on_with(tmp_path: Path) -> None:
    """Neither ledger nor commit names its leadership, and the log ends below it."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(1, 20)
    lab.ship_all()
    root = lab.table.store.config.root
    for path in (root / "_headwater/ledger/0").iterdir():
        path.unlink()
    commit = max((root / "_delta_log").glob("*.json"))
    commit.write_text(commit.read_text().replace("headwater.ranges", "headwater.other"))
    lineage = (leadership(1), leadership(2, 10))
    claim = claim_of(lineage, lab.source.partition_id, cluster="lab", broker="b", time_us=1)
    book = ClaimBook(lab.lake.table(lab.stream), lab.source.partition_id)
    with (
        ThreadPoolExecutor(2) as pool,
        pytest.raises(ForeignHistoryError, match=r"holds \[10, 20\)"),
    ):
        book.settle(lineage, claim, pool, cold_end=0)
