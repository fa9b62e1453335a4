"""A stream and its configuration, as the metadata holds them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.errors import InvalidStreamError
from broker.model.ids import StreamUuid, is_stream_name

MIB: Final = 1024 * 1024

_SUBJECT_BYTES_MAX: Final = 255
PARTITIONS_MAX: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What a stream's creator may choose. Sizes and times carry their unit in the name.

    A new setting has a default, for streams that were created before it, and bounds below. Its
    type is int, bool, str or a Literal of texts, or one of these and None: `_check_type` knows no
    other. `headwater stream create` has an option for each. A build without the setting does not
    open a stream that was created with it, so a cluster's brokers are updated together.

    Raises:
        InvalidStreamError: a value is out of bounds, or two of them contradict each other.
    """

    subject: str  # partition 0 listens to it, partition n to ``<subject>.<n>``; wildcards allowed
    partitions: int = 1
    queue_group: str | None = None  # NATS queue group, only for load-balanced ingest
    key_header: str = "Headwater-Key"  # NATS header whose first value becomes the record's key
    puback: bool = False  # answer the NATS reply subject with a JetStream-style PubAck
    dedup_window_ms: int = 120_000  # JetStream's default window for Nats-Msg-Id
    dedup_ids_max: int = 1_000_000  # bounds memory: about 150 B an id
    record_bytes_max: int = 8 * MIB  # value + key + headers of one record
    segment_bytes_max: int = 128 * MIB  # a sealed segment becomes one object of about this size
    segment_age_ms_max: int = 600_000  # freshness of the table when traffic is thin
    index_interval_bytes: int = 64 * 1024
    flush: Literal["always", "interval"] = "always"  # "interval" may lose the last interval
    flush_interval_ms: int = 200
    compression: Literal["none", "lz4", "zstd"] = (
        "none"  # of record batches on disk and on the wire
    )
    replication_factor: int = 0  # brokers that hold each partition; 0: the cluster's default
    min_isr: int = 0  # so many of them have synced what is acked under ALL; 0: the default
    tiering: bool = True
    local_retention_bytes: int = (
        1024 * MIB
    )  # per partition; only what is in the table and out of the dedup window is ever freed
    local_retention_ms: int | None = None  # free tiered segments older than this as well
    unshipped_bytes_max: int | None = (
        None  # per partition; beyond it writes are refused (back-pressure)
    )

    def __post_init__(self) -> None:
        _check_subject(self.subject)
        _require(1 <= self.partitions <= PARTITIONS_MAX, "partitions", f"1 to {PARTITIONS_MAX}")
        _require(
            self.partitions == 1 or not _has_wildcard(self.subject),
            "partitions",
            "1 when the subject has a wildcard, for <subject>.<n> would overlap it",
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
        factor = self.replication_factor
        _require(0 <= factor <= 7, "replication_factor", "1 to 7, or 0 for the cluster's default")
        _require(
            0 <= self.min_isr <= (factor or 7),
            "min_isr",
            "1 to replication_factor, or 0 for the cluster's default",
        )
        _require(self.local_retention_bytes >= 0, "local_retention_bytes", "0 or more")
        _require(
            self.local_retention_ms is None or self.local_retention_ms >= 0,
            "local_retention_ms",
            "0 or more",
        )
        _require(
            self.unshipped_bytes_max is None
            or self.unshipped_bytes_max >= 2 * self.segment_bytes_max,
            "unshipped_bytes_max",
            "at least two segments",
        )

    def partition_subject(self, partition: int) -> str:
        """Return the NATS subject that partition ``partition`` listens to."""
        return self.subject if partition == 0 else f"{self.subject}.{partition}"

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON-ready values, every field present."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamConfig:
        """Build a configuration from JSON values; unknown names and wrong types are refused."""
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

    def __post_init__(self) -> None:
        if not is_stream_name(self.name):
            raise InvalidStreamError(
                f"stream name {self.name!r} must be 1 to 128 of A-Z a-z 0-9 _ -, not first -"
            )

    def to_json(self) -> str:
        """Return a canonical JSON text of the whole stream."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stream:
        """Rebuild a stream from the parsed :meth:`to_json` text."""
        config = StreamConfig.from_dict(values["config"])
        return cls(**{**values, "config": config})


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


def _check_subject(subject: str) -> None:
    tokens = subject.split(".")
    legal = (
        subject.isascii()
        and subject.isprintable()
        and " " not in subject
        and 0 < len(subject) <= _SUBJECT_BYTES_MAX
        and all(tokens)
        and ">" not in tokens[:-1]
    )
    if not legal:
        raise InvalidStreamError(f"subject {subject!r} is not a NATS subject")
