"""Turns an error into a message, a hint and an exit code; the only module that does.

Exit codes: 1 data is damaged, 2 the request or the configuration is wrong, 3 try again later,
130 interrupted. Every other exception is a bug in Headwater, and its message says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.errors import (
    CorruptDataError,
    FencedError,
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    SegmentCorruptError,
    UnavailableError,
)
from headwater.extras import install_hint

EXIT_DAMAGED: Final = 1
EXIT_WRONG_REQUEST: Final = 2
EXIT_TRY_LATER: Final = 3
EXIT_INTERRUPTED: Final = 130

# What to do about an error, by the name of its class, else of its nearest base class listed here.
_HINTS: Final = {
    "UnknownStreamError": "List what exists with `headwater stream list`, or make the stream with "
    "`headwater stream create NAME --subject SUBJECT`.",
    "StreamExistsError": "`headwater stream describe NAME` shows the existing stream, and "
    "`headwater stream alter NAME` changes its settings. Or choose another name.",
    "UnknownPartitionError": "`headwater stream describe NAME` shows the partitions.",
    "OffsetOutOfRangeError": "Give an offset within the range. To read, `--from earliest` begins "
    "at the first record.",
    "RecordTooLargeError": "Raise the stream's --record-bytes (of a batch: --segment-bytes), or "
    "send smaller records or batches; one NATS message carries at most 8 MiB here.",
    "FixedSettingError": "`headwater stream alter --help` lists the settings that can change.",
    "UnknownGroupError": "`headwater group list` shows the groups.",
    "UnknownTenantError": "`headwater access tenant list` shows the tenants.",
    "TenantExistsError": "`headwater access tenant alter TENANT` changes it.",
    "TenantInUseError": "`headwater stream list` and `headwater group list` show what it has.",
    "GroupInUseError": "`headwater group describe GROUP` shows the members and where they run.",
    "NoPositionError": "`headwater group reset GROUP --to earliest` (or latest) sets one.",
    "StaleMemberError": "Another process has this name: give each its own --member, or none.",
    "PartitionReadonlyError": "`headwater stream readonly STREAM --off` lets it take "
    "records again.",
    "PartitionPausedError": "`headwater stream resume STREAM` lets it take records again.",
    "HeldByLeaseError": "`headwater lease list STREAM` shows who reads.",
    "NotShippedError": "`headwater tier flush STREAM` ships what is committed.",
    "PurgeRefusedError": "What was purged stays purged. `headwater lease list STREAM` shows who "
    "reads, `headwater tier flush STREAM` ships what is committed; then run the command again.",
    "PurgedError": "`headwater stream describe STREAM` shows the first offset that can be read.",
    "ExpiredError": "`headwater stream describe STREAM` shows the first offset that can be read, "
    "and the stream's remote_retention settings.",
    "HeldByPositionError": "The stream protects saved positions: protect_groups.",
    "UnknownLeaseError": "A lease keeps what a reader needs. To read on after its end, take a new "
    "cut: `headwater cut STREAM`.",
    "InvalidCutError": "Give the whole text that `headwater cut STREAM` printed, or a file with "
    "that text as `--as-of @FILE`.",
    "InvalidConfigError": "`headwater COMMAND --help` lists the options, docs/operations.md the "
    "keys of the configuration.",
    "UnfencedStoreError": "Use a store with conditional PUT (If-None-Match), such as AWS S3, "
    "MinIO or a local directory.",
    "UnauthenticatedError": "Give a token: `headwater --token-file FILE …`, HEADWATER_TOKEN_FILE "
    "or HEADWATER_TOKEN. An administrator of the cluster makes one with `headwater token create`. "
    "For your own guarded `headwater up`, run the command in its folder or give --server DIR.",
    "AccessDeniedError": "An administrator of the cluster gives the right with `headwater access "
    "grant`; docs/security.md lists what each call needs.",
    "FencedError": "The cluster's state changed during the command. Run the command again.",
    "IneligibleReplicaError": "`headwater cluster partitions` shows which replicas are in sync.",
    "CommitTimeoutError": "It is not known whether it was done. `headwater cluster status` shows "
    "partitions without a leader, and whether a majority of the controllers answers.",
    "NotEnoughReplicasError": "`headwater cluster status` shows which replicas are not in sync.",
    "QuotaExceededError": "Wait, or ask an administrator of the cluster for a larger quota: "
    "`headwater access quota set`, or for a tenant `headwater access tenant alter`.",
    "OverloadedError": "The broker answers, but has more requests than it can take. Try again.",
    "DiskFullError": "Free disk space; the broker then accepts writes again by itself.",
    "LogFailedError": "A write to the partition's log failed, and the log accepts no more writes. "
    "The records that were being sent may be stored. Check the broker's messages and the disk, "
    "then restart the broker.",
    "RemoteTierUnavailableError": "No record is lost: the broker has them in its log, and tries "
    "again. Check what the reason names: the store's endpoint, its credentials, the network, keys.",
    "EncryptionKeyError": "docs/encryption.md says how brokers and readers get their keys; "
    "`headwater broker --check` tries a broker's.",
    "JarsMissingError": "Run it once with a network, or copy ~/.cache/headwater/ivy from another "
    "machine (HEADWATER_IVY_DIR names another folder), or set spark.jars.repositories to a mirror.",
    "UnavailableError": "Is the server running? `headwater up` starts one; `--server` or "
    "HEADWATER_SERVER names another.",
    "CorruptDataError": "Nothing was deleted or repaired. `headwater verify STREAM` checks every "
    "byte; docs/operations.md says what to do next.",
}
_CODES: Final[tuple[tuple[type[HeadwaterError], int], ...]] = (
    (CorruptDataError, EXIT_DAMAGED),
    (InvalidRequestError, EXIT_WRONG_REQUEST),
    (InvalidConfigError, EXIT_WRONG_REQUEST),
    (FencedError, EXIT_TRY_LATER),
    (UnavailableError, EXIT_TRY_LATER),
)

# Package that is missing -> the extra that brings it.
_EXTRAS: Final = {"pyspark": "spark", "delta": "spark", "duckdb": "sql", "sqlglot": "sql"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a person and a script see it."""

    name: str
    message: str
    hint: str | None
    exit_code: int


def explain(error: BaseException) -> Failure | None:
    """Return name, message, hint and exit code of ``error``; None if it is a bug in Headwater."""
    if isinstance(error, HeadwaterError):
        names = [str(error.facts.get("cause")), *(kind.__name__ for kind in type(error).__mro__)]
        hints = map(_HINTS.get, names)
        hint = _around(error) or next((text for text in hints if text is not None), None)
        code = next((code for kind, code in _CODES if isinstance(error, kind)), EXIT_DAMAGED)
        return Failure(type(error).__name__, error.message, hint, code)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return Failure("OSError", _os_error(error), None, EXIT_WRONG_REQUEST)
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(error.name or "", "demo")
        message = f"the Python package {error.name!r} is not installed"
        return Failure("MissingPackage", message, install_hint(extra), EXIT_WRONG_REQUEST)
    return None


def _around(error: HeadwaterError) -> str | None:
    """Return how to read around a damaged range of a partition's log, if the error says where."""
    if not isinstance(error, SegmentCorruptError) or "readable_from" not in error.facts:
        return None
    facts = error.facts
    of = f"headwater subscribe STREAM -p {facts.get('partition', 0)}"
    behind = facts["readable_from"]
    ways = [f"`{of} --to {facts['offset']}` prints the records before the damage"]
    if behind is not None:
        ways.append(f"`{of} --from {behind}` prints those after it")
    return (
        f"Nothing was deleted or repaired. {', '.join(ways)}. docs/operations.md, "
        '"A segment is damaged", says what to do next.'
    )


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
