"""A stream and its configuration, as the metadata holds them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.errors import FixedSettingError, InvalidStreamError
from broker.model.data_key import DataKey, check_data_keys, data_keys_of
from broker.model.ids import StreamUuid, is_stream_name
from broker.model.subjects import SUBJECT_BYTES_MAX, is_literal, is_pattern, matches

MIB: Final = 1024 * 1024

PARTITIONS_MAX: Final = 1024
_GRACE_MS_MAX: Final = 10 * 366 * 86_400_000
REPLICAS_MAX: Final = 7
EVERY_BROKER: Final = -1  # as a replication factor; the metadata has the number of brokers instead
_AUTO_PAUSE_MS_MAX: Final = 30 * 86_400_000
_YEAR_MS: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """The settings of a stream. Sizes and times have their unit in the name.

    A new setting needs a default, for streams that were created before it, and bounds in
    ``__post_init__``. Its type is int, bool, str or a Literal of texts, or one of these and None:
    `_check_type` knows no other type. `headwater stream create` has an option for each setting. A
    build that does not know a setting refuses a stream which has it, so the brokers of a cluster
    are updated together.

    Raises:
        InvalidStreamError: a value is out of bounds, or two values contradict each other.
    """

    subject: str  # of partition 0; partition n has ``<subject>.<n>``; wildcards are allowed
    partitions: int = 1
    # how producers choose a record's partition; see broker/model/partitioner.py
    partitioner: Literal["crc32", "each_client"] = "crc32"
    queue_group: str | None = None  # NATS queue group, only for load-balanced ingest
    key_header: str = "Headwater-Key"  # NATS header whose first value becomes the record's key
    puback: bool = False  # answer the NATS reply subject with a JetStream-style PubAck
    puback_overlap: bool = False  # allow puback although another such stream has the same subject
    puback_headers_only: bool = (
        False  # answer only messages with a header of JetStream's publishers
    )
    # each message of a Liftbridge client names the offset that it expects to get; -1: any
    optimistic_concurrency: bool = False
    dedup_window_ms: int = 120_000  # JetStream's default window for Nats-Msg-Id
    dedup_ids_max: int = 1_000_000  # per partition; the broker has a bound for all: NodeConfig
    record_bytes_max: int = 8 * MIB  # value + key + headers of one record
    segment_bytes_max: int = 128 * MIB  # a sealed segment becomes one object of about this size
    segment_age_ms_max: int = 600_000  # keeps the table fresh when few records arrive
    index_interval_bytes: int = 64 * 1024
    # "interval" may lose the acknowledged records of the last interval
    flush: Literal["always", "interval"] = "always"
    flush_interval_ms: int = 200
    compression: Literal["none", "lz4", "zstd"] = (
        "none"  # of record batches on disk and on the wire
    )
    encryption: Literal["none", "xaes-256-gcm"] = "none"  # of record batches on disk
    table_encryption: Literal["plaintext", "ciphertext"] = "plaintext"  # of an encrypted stream
    # brokers that hold each partition; 0: the cluster's default; -1, at creation: all there are
    replication_factor: int = 0
    min_isr: int = 0  # replicas that have synced a record before its ack (ALL); 0: the default
    # key compaction: of the local log, keep the last record of each key; a table stays whole
    compact: bool = False
    tombstone_delay_ms: int = 86_400_000  # a tombstone stays for at least this long
    compact_dirty_percent: int = 50  # compact when this share of the eligible bytes is new
    # of the table: "compact" lets records go that a later record of their key supersedes
    history: Literal["keep", "compact"] = "keep"
    tiering: bool = True
    local_retention_bytes: int = (
        1024 * MIB
    )  # per partition; only records in the table and out of the dedup window are ever freed
    local_retention_ms: int | None = None  # also free shipped segments that are older
    local_retention_records: int | None = None  # also free shipped records beyond this number
    unshipped_bytes_max: int | None = (
        None  # per partition; above this limit writes are refused (back-pressure)
    )
    # Limits of the table, per partition. The oldest file leaves the table if the other files still
    # reach the limit. None: no limit.
    remote_retention_ms: int | None = None
    remote_retention_bytes: int | None = None
    remote_retention_records: int | None = None
    remote_delete_grace_ms: int = (
        604_800_000  # expired files are deleted this much later; Delta's default
    )
    protect_groups: bool = False  # a record at or above a cursor or group position never expires
    # pause a partition that got no record for this long; None: never
    auto_pause_ms: int | None = None
    auto_pause_unless_subscribed: bool = False  # not while a reader follows the partition

    def __post_init__(self) -> None:
        _check_subject(self.subject)
        _require(1 <= self.partitions <= PARTITIONS_MAX, "partitions", f"1 to {PARTITIONS_MAX}")
        _require(
            self.partitions == 1 or not _has_wildcard(self.subject),
            "partitions",
            "1 when the subject has a wildcard, because <subject>.<n> would overlap the wildcard",
        )
        _require(
            self.partitioner in ("crc32", "each_client"), "partitioner", "crc32 or each_client"
        )
        for name in ("key_header", "queue_group"):
            text = getattr(self, name)
            _require(
                text is None
                or (text.isascii() and text.isprintable() and " " not in text and text != ""),
                name,
                "one printable ASCII word",
            )
        _require(0 <= self.dedup_window_ms <= 86_400_000, "dedup_window_ms", "0 (off) to one day")
        _require(1 <= self.dedup_ids_max <= 50_000_000, "dedup_ids_max", "1 to 50 million")
        _require(1 <= self.record_bytes_max <= 64 * MIB, "record_bytes_max", "1 to 64 MiB")
        _require(
            4096 <= self.segment_bytes_max <= 1024 * MIB, "segment_bytes_max", "4 KiB to 1 GiB"
        )
        _require(self.segment_age_ms_max >= 100, "segment_age_ms_max", "at least 100")
        _require(1 <= self.index_interval_bytes <= 16 * MIB, "index_interval_bytes", "1 to 16 MiB")
        _require(self.flush in ("always", "interval"), "flush", '"always" or "interval"')
        _require(1 <= self.flush_interval_ms <= 60_000, "flush_interval_ms", "1 to 60 000")
        _require(self.compression in ("none", "lz4", "zstd"), "compression", "none, lz4 or zstd")
        _require(self.encryption in ("none", "xaes-256-gcm"), "encryption", "none or xaes-256-gcm")
        _require(
            self.table_encryption in ("plaintext", "ciphertext"),
            "table_encryption",
            "plaintext or ciphertext",
        )
        factor = self.replication_factor
        _require(
            EVERY_BROKER <= factor <= REPLICAS_MAX,
            "replication_factor",
            f"1 to {REPLICAS_MAX}, 0 for the cluster's default, or -1 for all brokers",
        )
        _require(
            0 <= self.min_isr <= (factor if factor > 0 else REPLICAS_MAX),
            "min_isr",
            "1 to replication_factor, or 0 for the cluster's default",
        )
        _require(0 <= self.tombstone_delay_ms <= _YEAR_MS, "tombstone_delay_ms", "0 to one year")
        _require(1 <= self.compact_dirty_percent <= 100, "compact_dirty_percent", "1 to 100")
        _require(self.local_retention_bytes >= 0, "local_retention_bytes", "0 or more")
        _require(
            self.local_retention_ms is None or self.local_retention_ms >= 0,
            "local_retention_ms",
            "0 or more",
        )
        _require((self.local_retention_records or 0) >= 0, "local_retention_records", "0 or more")
        self._check_table()
        _require(
            self.unshipped_bytes_max is None
            or self.unshipped_bytes_max >= 2 * self.segment_bytes_max,
            "unshipped_bytes_max",
            "at least two segments",
        )
        _require(
            self.auto_pause_ms is None or 100 <= self.auto_pause_ms <= _AUTO_PAUSE_MS_MAX,
            "auto_pause_ms",
            "100 ms to 30 days",
        )

    def _check_table(self) -> None:
        _require(self.history in ("keep", "compact"), "history", "keep or compact")
        _require(
            self.history == "keep" or self.tiering,
            "history",
            "keep for a stream without tiering: it has no table; set compact instead",
        )
        for name in ("remote_retention_ms", "remote_retention_bytes", "remote_retention_records"):
            limit = getattr(self, name)
            _require(limit is None or limit >= 1, name, "1 or more; without it everything is kept")
            _require(
                limit is None or self.tiering,
                name,
                "of a stream with tiering: another stream has no table whose files could expire",
            )
        _require(
            0 <= self.remote_delete_grace_ms <= _GRACE_MS_MAX,
            "remote_delete_grace_ms",
            "0 to ten years",
        )

    def partition_subject(self, partition: int) -> str:
        """Return the NATS subject that partition ``partition`` listens to."""
        return self.subject if partition == 0 else f"{self.subject}.{partition}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """The NATS subjects that the partitions listen to."""
        return tuple(map(self.partition_subject, range(self.partitions)))

    def partition_on(self, subject: str) -> int | None:
        """Return the partition that records this subject; None if the stream does not record it."""
        if subject == self.subject:
            return 0 if is_literal(subject) else None
        if _has_wildcard(self.subject):
            return 0 if is_literal(subject) and matches(self.subject, subject) else None
        head, _, number = subject.rpartition(".")
        digits = len(number) <= 4 and number.isdecimal()
        legal = head == self.subject and digits and number == str(int(number))
        return int(number) if legal and 0 < int(number) < self.partitions else None

    def is_kept_by(self, present: StreamConfig) -> bool:
        """Tell whether creating the stream again, with this configuration, would change nothing.

        A stream of release 0.1 keeps its partitioner, whatever the later default is.
        """
        if present.partitioner == "each_client":
            return dataclasses.replace(self, partitioner="each_client") == present
        return self == present

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON-ready values, every field present."""
        return {name: getattr(self, name) for name in _SETTINGS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamConfig:
        """Build a configuration from JSON values.

        Raises:
            InvalidStreamError: an unknown name, a value of another type or out of its bounds.
        """
        if not isinstance(values, Mapping):
            raise InvalidStreamError("the settings of a stream must be an object")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise InvalidStreamError(
                f"unknown stream setting {unknown[0]!r}; known: {', '.join(fields)}"
            )
        if "subject" not in values:
            raise InvalidStreamError("a stream needs a subject")
        for name, value in values.items():
            _check_type(name, str(fields[name].type), value)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One incarnation of a stream."""

    name: str
    uuid: StreamUuid
    config: StreamConfig
    created_us: int
    table_name: str  # folder of its Delta table below <lake>/<namespace>/
    namespace: str = "default"
    grown_from: int | None = None  # partitions at its creation; None: none were added since
    data_keys: tuple[DataKey, ...] = ()  # wrapped, by version; empty if it is not encrypted

    def __post_init__(self) -> None:
        if not is_stream_name(self.name):
            raise InvalidStreamError(
                f"stream name {self.name!r} must be 1 to 128 characters of A-Z a-z 0-9 _ -, and "
                "must not begin with -"
            )
        if self.grown_from is not None and not 0 < self.grown_from < self.config.partitions:
            raise InvalidStreamError(
                f"stream {self.name!r} cannot have grown from {self.grown_from} to "
                f"{self.config.partitions} partitions"
            )
        check_data_keys(self.data_keys)

    @property
    def keys_from(self) -> int | None:
        """How many partitions the keys began with; None if each key stays in one partition.

        The partition of a key only rises when partitions are added (`grown`). So the newest record
        of a key is in the highest partition that has one. A tombstone in a partition with this
        number or a higher one hides records of its key in lower partitions.
        """
        return self.grown_from if self.config.partitioner == "crc32" else None

    def grown(self, partitions: int) -> Stream:
        """Return the stream with more partitions.

        Raises:
            FixedSettingError: fewer partitions than now.
            InvalidStreamError: too many, or a number that would move keys between partitions that
                exist already.
        """
        present = self.config.partitions
        if partitions < present:
            raise FixedSettingError(
                f"partitions of stream {self.name!r} is {present} and cannot become {partitions}: "
                "readers would lose the records of the partitions that are removed. Create "
                "another stream with the number that you want, and copy what is needed",
                stream=self.name,
                setting="partitions",
                present=present,
                wanted=partitions,
            )
        config = dataclasses.replace(self.config, partitions=partitions)
        if partitions == present:
            return self
        if config.partitioner == "crc32" and partitions % present:
            allowed = [
                present * factor for factor in (2, 3, 4) if present * factor <= PARTITIONS_MAX
            ]
            raise InvalidStreamError(
                f"stream {self.name!r} has {present} partitions, which can be multiplied ("
                f"{', '.join(map(str, allowed)) or 'no number'}), but cannot become {partitions}: "
                "with another number, keys would move between partitions that have records, and "
                "the newest record of a key could not be found any more",
                stream=self.name,
                present=present,
                allowed=allowed,
            )
        return dataclasses.replace(self, config=config, grown_from=self.grown_from or present)

    @property
    def is_encrypted(self) -> bool:
        """Whether its record batches are encrypted."""
        return self.config.encryption != "none"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without unset fields that older builds do not know."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["data_keys"] = tuple(map(dataclasses.asdict, self.data_keys))
        return without_unset(values)

    def to_json(self) -> str:
        """Return a canonical JSON text of the whole stream."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stream:
        """Rebuild a stream from the parsed :meth:`to_json` text.

        Raises:
            InvalidStreamError: the values are not those of a stream.
        """
        config = values.get("config") if isinstance(values, Mapping) else None
        if not isinstance(config, Mapping):
            raise InvalidStreamError("a stream is an object with a config, which is an object")
        for name in _NEEDED - values.keys():
            raise InvalidStreamError(f"a stream needs the field {name!r}")
        for name in values.keys() - {"config", "data_keys"}:
            if name not in _DECLARED:
                raise InvalidStreamError(f"a stream has no field {name!r}")
            _check_type(name, _DECLARED[name], values[name])
        # Release 0.1 wrote no partitioner: each of its clients had a rule of its own.
        settings = StreamConfig.from_dict({"partitioner": "each_client", **config})
        keys = data_keys_of(values.get("data_keys", ()))
        return cls(**{**values, "config": settings, "data_keys": keys})


@dataclass(frozen=True, slots=True)
class AlteredStream:
    """A stream before and after a change of its settings; equal if nothing was to be changed."""

    before: Stream
    after: Stream

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ: their values before and after, by name."""
        before, after = self.before.config.to_dict(), self.after.config.to_dict()
        return {name: (was, after[name]) for name, was in before.items() if was != after[name]}


# Names of fields. ``asdict`` takes five times as long to find and copy the same values.
_SETTINGS: Final = tuple(field.name for field in dataclasses.fields(StreamConfig))
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Stream))
_DECLARED: Final = {field.name: str(field.type) for field in dataclasses.fields(Stream)}
_NEEDED: Final = frozenset({"name", "uuid", "created_us", "table_name"})  # config is checked before
# Fields that came after release 0.1, with their defaults.
_LATER_FIELDS: Final[Mapping[str, Any]] = {"grown_from": None, "data_keys": ()}
_LATER_SETTINGS: Final[Mapping[str, Any]] = {
    "encryption": "none",
    "table_encryption": "plaintext",
    "local_retention_records": None,
    "remote_retention_ms": None,
    "remote_retention_bytes": None,
    "remote_retention_records": None,
    "remote_delete_grace_ms": 604_800_000,
    "protect_groups": False,
    "auto_pause_ms": None,
    "auto_pause_unless_subscribed": False,
    "compact": False,
    "tombstone_delay_ms": 86_400_000,
    "compact_dirty_percent": 50,
    "history": "keep",
}


def without_unset(stream: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stream without those that older builds do not know.

    They are left out while they have their default, so these builds read the rest.
    """
    config = stream["config"]
    settings = config.to_dict() if isinstance(config, StreamConfig) else config
    return {**_used(stream, _LATER_FIELDS), "config": _used(settings, _LATER_SETTINGS)}


def _used(values: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if name not in later or one != later[name]}


def _check_type(name: str, declared: str, value: object) -> None:
    """Refuse a JSON value that is not of the field's declared type."""
    optional = "None" in declared
    if optional and value is None:
        return
    first = declared.partition(" ")[0]
    expected: type = {"int": int, "bool": bool}.get(first, str)
    if type(value) is not expected:
        raise InvalidStreamError(f"{name} must be of type {expected.__name__}, not {value!r}")


def _require(holds: bool, name: str, allowed: str) -> None:
    if not holds:
        raise InvalidStreamError(f"{name} must be {allowed}")


def _has_wildcard(subject: str) -> bool:
    return any(token in ("*", ">") for token in subject.split("."))


def not_a_subject(subject: str) -> str:
    """Return why a stream cannot have a subject that is no pattern of NATS."""
    return (
        f"subject {subject!r} is not a NATS subject: it must be at most {SUBJECT_BYTES_MAX} "
        "printable ASCII characters in non-empty words with dots between them, without a "
        "blank, with > only as the last word"
    )


def _check_subject(subject: str) -> None:
    if not is_pattern(subject):
        raise InvalidStreamError(not_a_subject(subject))
