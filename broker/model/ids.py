"""Identities. Names are for people; paths, keys and transactions are built from ids alone.

A stream gets a UUID when it is created. So a stream that is deleted and created again under its old
name is a different stream everywhere: on disk, in the table, in every request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType

BrokerId = NewType("BrokerId", str)
StreamUuid = NewType("StreamUuid", str)  # canonical lower-case UUID text, 36 characters
PartitionNumber = NewType("PartitionNumber", int)  # 0-based within its stream
ProducerId = NewType("ProducerId", int)  # chosen by the producer, 63 random bits; -1 means none
LeaseId = NewType("LeaseId", str)

NO_PRODUCER: Final = ProducerId(-1)
NO_SEQUENCE: Final = -1

# In place of the sequence of a batch without a producer: whether its message ids were looked up.
IDS_COUNT: Final = -2  # they are in the deduplication window, as NATS ingest puts them there
IDS_DO_NOT_COUNT: Final = -3  # a header that looks like a message id is data

_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}\Z")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def is_stream_name(text: str) -> bool:
    """Tell whether ``text`` may name a stream: 1 to 128 of ``A-Z a-z 0-9 _ -``, no ``-`` first."""
    return _STREAM_NAME.match(text) is not None


def is_uuid(text: str) -> bool:
    """Tell whether ``text`` is a canonical lower-case UUID, safe to build a path from."""
    return _UUID.match(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """One partition of one incarnation of a stream."""

    stream_uuid: StreamUuid
    number: PartitionNumber

    def __post_init__(self) -> None:
        assert is_uuid(self.stream_uuid), f"not a stream uuid: {self.stream_uuid!r}"
        assert self.number >= 0, f"negative partition {self.number}"

    def __str__(self) -> str:
        return f"{self.stream_uuid}/{self.number}"
