"""Decoders of what is read from a bucket: a table's log and ledger, proofs, claims, Parquet."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from broker.errors import HeadwaterError, ObjectMissingError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from fuzzkit.decoder import Decoder
from simkit.tier import hand_log
from simkit.tier.source import make_stream
from tiering.proof import proofs
from tiering.proof.provenance import Provenance, Walk
from tiering.purge.owner import MARK_KEY, TableOwner, decode_owner, owner_of
from tiering.read.parquet_source import ParquetObject, read_columns
from tiering.ship import claims
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo
from tiering.store.s3 import checksum_in
from tiering.table import commit_files, delta_log
from tiering.table.expiries import ExpiryEntry
from tiering.table.key_compactions import KeyCompactionEntry
from tiering.table.ledger import Ledger, LedgerEntry, decode_ranges, encode_ranges
from tiering.table.table import DataFile
from tiering.table.transactions import TransactionNames

_URI: Final = "file:///lake/default/s"
_FIRST, _SECOND = hand_log.entry(0, 10), hand_log.entry(10, 20)
_NEWEST: Final = 1  # the version of the commit that is changed


class _Store:
    """A folder whose every object, and every commit from ``_NEWEST`` on, has the same bytes."""

    config = StoreConfig.from_env("file:///lake", {})

    def __init__(self, data: bytes, listed: tuple[str, ...] = ()) -> None:
        self._data = data
        self._listed = listed

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes, whatever the key."""
        return self._data[start:end]

    def head(self, key: str) -> ObjectInfo:
        """Tell their size."""
        return ObjectInfo(key=key, size_bytes=len(self._data))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the names that this folder was given."""
        yield from (self.head(one) for one in self._listed if start_after < one)


class _UnmarkedFolder(_Store):
    """A folder in which no purge is under way."""

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes, but not for the mark of a purge."""
        if key == MARK_KEY:
            raise ObjectMissingError("no purge", key=key)
        return super().get(key, start, end)


# ------------------------------------------------------------------------------------- the log


def _commits() -> list[bytes]:
    """Return commits as the uploader, the expirer and an engine's compaction write them."""
    return [
        hand_log.body(one)
        for one in (
            hand_log.shipped(_FIRST),
            hand_log.shipped(_FIRST, hand_log.entry(0, 4, partition=1)),
            hand_log.expired(_FIRST),
            [hand_log.remove(_FIRST, changes=False), hand_log.add(_SECOND, changes=False)],
            hand_log.CREATED,
        )
    ]


def _walked(data: bytes) -> object:
    """Prove a commit on top of a table with one range, or as the first of a table."""
    log_store: Any = _Store(data, (delta_log.log_key(_NEWEST),))
    refused: list[HeadwaterError] = []
    for before in ((hand_log.body(hand_log.CREATED), hand_log.body(hand_log.shipped(_FIRST))), ()):
        walk = Walk(Provenance(), _URI)
        try:
            for version, body in enumerate((*before, data, hand_log.body(hand_log.CREATED))):
                walk.step(version, body)
            walk.end()
        except HeadwaterError as error:
            refused.append(error)
    for read in (
        lambda: delta_log.commits_between(log_store, above=0, up_to=_NEWEST),
        lambda: delta_log.fold(log_store, {}, above=0, up_to=_NEWEST),
    ):
        try:
            read()
        except HeadwaterError as error:
            refused.append(error)
    return refused


def _file_actions(data: bytes) -> object:
    found: list[object] = []
    for action in commit_files.actions_in(data, 1, _URI):
        for add in (one for name, one in action.items() if name == "add"):
            try:
                found.append((commit_files.file_in(add), commit_files.claims_in(add)))
            except commit_files.NotOursError as refused:
                found.append(refused)
    return found


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def _checkpoint() -> bytes:
    rows = [{"appId": "headwater/c/u/0", "version": 7}, None]
    kind = pa.struct([("appId", pa.string()), ("version", pa.int64())])
    return _parquet(pa.table({"txn": pa.array(rows, kind)}))


def _transactions(data: bytes) -> object:
    store: Any = _Store(data, (f"_delta_log/{5:020}.checkpoint.parquet",))
    return delta_log.transactions_at(store, 5)


# ------------------------------------------------------------------------------------- accounts


def _proof() -> bytes:
    walk = Walk(Provenance(), _URI)
    for version, one in enumerate((hand_log.CREATED, hand_log.shipped(_FIRST, _SECOND))):
        walk.step(version, hand_log.body(one))
    return proofs.encode(walk.end())


def _proof_resealed(data: bytes) -> bytes:
    """Compress a changed proof again, with the digest of what it says now."""
    try:
        text = zlib.decompressobj(wbits=31).decompress(data, 1 << 20).partition(b"\n")[2]
    except zlib.error:
        return data
    return _packed(text)


def _packed(text: bytes) -> bytes:
    digest = hashlib.sha256(text).hexdigest().encode()
    return gzip.compress(digest + b"\n" + text, compresslevel=1, mtime=0)


def _proof_text() -> bytes:
    return gzip.decompress(_proof()).partition(b"\n")[2]


def _expiry() -> bytes:
    entry = ExpiryEntry(
        partition=0, start=Offset(0), end=Offset(10), cold_end=Offset(20), paths=("a", "b"),
        size_bytes=9, expired_us=1, lineage_id="", commit_id="x",
    )  # fmt: skip
    return entry.to_text().encode()


def _compaction() -> bytes:
    one = hand_log.entry(0, 10)
    values = {**asdict(one), "records_count": 4, "sparse": True}
    entry = KeyCompactionEntry(
        partition=0, start=Offset(0), end=Offset(10), cold_end=Offset(20),
        files=(LedgerEntry(**values),), compacted_us=1, lineage_id="", commit_id="x",
    )  # fmt: skip
    return entry.to_text().encode()


def _app_ids(data: bytes) -> object:
    stream = make_stream(partitions=2)
    names = TransactionNames("c", stream.uuid, "history")
    return names.parsed(data.decode(errors="replace"))


# ------------------------------------------------------------------------------------- files


def _rows() -> pa.Table:
    return pa.table(
        {
            "offset": pa.array([0, 1, 2], pa.int64()),
            "timestamp": pa.array([5, 6, 7], pa.timestamp("us", "UTC")),
            "value": pa.array([b"a", b"b", None], pa.binary()),
        }
    )


def _read_parquet(data: bytes) -> object:
    store: Any = _Store(data)
    file = DataFile(
        path="partition=0/0.parquet", size_bytes=len(data), partition=0, records_count=3,
        min_offset=Offset(0), max_offset=Offset(2),
    )  # fmt: skip
    found = ParquetObject(store, file)
    for number, _ in enumerate(found.row_groups()):
        found.read(number, ["offset", "value"])
    return found.offsets(), read_columns(store, "key", ["value"])


_PARTITION: Final = PartitionId(hand_log.STREAM.uuid, PartitionNumber(0))
_LINEAGE: Final = (Leadership(leader_epoch=LeaderEpoch(7), lineage_id="a" * 32, start=Offset(0)),)


def _claimed(data: bytes) -> object:
    """Look whether the newest claim is of our history."""
    table: Any = SimpleNamespace(store=_Store(data, (claims.claim_key(0, 8),)))
    claims.ClaimBook(table, _PARTITION).look(_LINEAGE, thorough=True)
    return None


def _folder_of(data: bytes) -> object:
    """Return whose a folder is whose only commit is ``data``."""
    return owner_of(cast("Any", _UnmarkedFolder(data, (delta_log.log_key(0),))))


def _claim() -> bytes:
    claim = claims.claim_of(_LINEAGE, _PARTITION, cluster="c", broker="b", time_us=5)
    return replace(claim, leader_epoch=8).encode()


def _owners() -> Iterator[Decoder]:
    """Yield those of a purge, which asks whose a folder is."""
    yield Decoder(
        name="purge_mark",
        covers=("tiering.purge.owner.decode_owner",),
        decode=lambda data: decode_owner(data, "mark"),
        make_seeds=lambda: [TableOwner(stream_uuid=_PARTITION.stream_uuid).encode()],
    )
    yield Decoder(
        name="owner_in_log",
        covers=("tiering.purge.owner.owner_of",),
        decode=_folder_of,
        make_seeds=lambda: [b'{"metaData": {"configuration": {"headwater.stream_uuid": ""}}}'],
        raw_seeds=False,  # in this folder a claim has the same bytes
    )


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _owners()
    yield Decoder(
        name="claim",
        covers=("tiering.ship.claims.ClaimBook.look",),
        decode=_claimed,
        make_seeds=lambda: [_claim()],
        raw_seeds=False,  # a well-formed claim is another's, and so refused
    )
    yield Decoder(
        name="s3_checksum",
        covers=("tiering.store.s3.checksum_in",),
        decode=lambda data: checksum_in(data.decode("latin-1")),
        make_seeds=lambda: [b"AAAAAA=="],
    )
    yield Decoder(
        name="delta_commit",
        covers=(
            "tiering.proof.provenance.Walk.step",
            "tiering.table.delta_log.fold",
            "tiering.table.delta_log.commits_between",
        ),
        decode=_walked,
        make_seeds=_commits,
    )
    yield Decoder(
        name="delta_files",
        covers=(
            "tiering.table.commit_files.parsed_actions",
            "tiering.table.commit_files.actions_in",
            "tiering.table.commit_files.file_in",
            "tiering.table.commit_files.claims_in",
        ),
        decode=_file_actions,
        make_seeds=lambda: [json.dumps(hand_log.add(_FIRST)).encode()],
    )
    yield Decoder(
        name="delta_checkpoint",
        covers=("tiering.table.delta_log.transactions_at",),
        decode=_transactions,
        make_seeds=lambda: [_checkpoint()],
    )
    yield Decoder(
        name="delta_transaction",
        covers=("tiering.table.transactions.TransactionNames.parsed",),
        decode=_app_ids,
        make_seeds=lambda: [one["txn"]["appId"].encode() for one in hand_log.moved(10, start=0)],
    )
    yield from _accounts()
    yield Decoder(
        name="parquet",
        covers=(
            "tiering.read.parquet_source.ParquetObject",
            "tiering.read.parquet_source.read_columns",
            "tiering.store.arrow_file.parquet_file",
        ),
        decode=_read_parquet,
        make_seeds=lambda: [_parquet(_rows())],
    )


def _accounts() -> Iterator[Decoder]:
    yield Decoder(
        name="ledger_entry",
        covers=("tiering.table.ledger.Ledger.get", "tiering.table.ledger.LedgerEntry.from_dict"),
        decode=lambda data: Ledger(_Store(data)).get(0, Offset(0)),  # type: ignore[arg-type]
        make_seeds=lambda: [_FIRST.encode(), _FIRST.of_lineage("a" * 32).encode()],
    )
    yield Decoder(
        name="ledger_ranges",
        covers=("tiering.table.ledger.decode_ranges",),
        decode=lambda data: decode_ranges(data.decode(errors="replace"), version=3),
        make_seeds=lambda: [encode_ranges([_FIRST, _SECOND]).encode()],
    )
    yield Decoder(
        name="expiry",
        covers=("tiering.table.expiries.ExpiryEntry.from_text",),
        decode=lambda data: ExpiryEntry.from_text(data, key="k"),
        make_seeds=lambda: [_expiry()],
    )
    yield Decoder(
        name="key_compaction",
        covers=("tiering.table.key_compactions.KeyCompactionEntry.from_text",),
        decode=lambda data: KeyCompactionEntry.from_text(data, key="k"),
        make_seeds=lambda: [_compaction()],
    )
    yield Decoder(
        name="stored_proof",
        covers=("tiering.proof.proofs.decode",),
        decode=lambda data: proofs.decode(data, "k"),
        make_seeds=lambda: [_proof()],
        reseal=_proof_resealed,
    )
    yield Decoder(
        name="stored_proof_text",
        covers=("tiering.proof.proofs.decode",),
        decode=lambda data: proofs.decode(_packed(data), "k"),
        make_seeds=lambda: [_proof_text()],
    )
