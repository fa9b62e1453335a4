"""The offsets of a streaming query, in the form of its checkpoint. Pure.

    {"v": 1, "id": "<uuid>", "p": {"0": 40, "1": 7}}                     one stream
    {"v": 1, "s": {"flights": {"id": "<uuid>", "p": {"0": 40}}, ...}}    several, by name

``p`` has the next offset to read of each partition. ``h`` has the lineage id of the leadership
under which that offset was committed: if a stream was restored from an older copy, it may have
other records below the offset. Checkpoints of old builds have no ``h``, and old builds ignore it.
``from``, in the end of a batch, has the first offset of each partition that begins with this batch.
The start of a query is stored nowhere else: when Spark repeats the first batch, it asks for the
initial offset again, and by then "latest" is another offset. ``first`` marks an initial offset;
the query may still begin elsewhere, because no batch has ended there.

Spark compares offsets as text, so equal offsets always have the same text: streams are sorted by
name, partitions by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import InvalidRequestError, OffsetOutOfRangeError, StreamRecreatedError
from broker.model.ids import StreamUuid, is_stream_name, is_uuid
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The offsets up to which one incarnation of one stream was read."""

    uuid: StreamUuid
    ends: Mapping[int, Offset]
    starts: Mapping[int, Offset] = field(default_factory=dict)  # for partitions that begin here
    lineage_ids: Mapping[int, str] = field(default_factory=dict)  # leaderships of the ends

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, with its keys in a fixed order."""
        found: dict[str, Any] = {"id": self.uuid, "p": _numbers(self.ends)}
        if self.lineage_ids:
            found["h"] = {str(number): one for number, one in sorted(self.lineage_ids.items())}
        return found | {"from": _numbers(self.starts)} if self.starts else found


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """The offsets up to which a query has read each of its streams."""

    streams: Mapping[str, StreamOffsets]
    first: bool = False  # an initial offset: no batch has ended here

    def to_json(self, single: str | None) -> dict[str, Any]:
        """Return the JSON form; ``single`` is the stream of a query that always has exactly one."""
        found: dict[str, Any] = {"v": _VERSION}
        if single is not None:
            found |= self.streams[single].to_json()
        else:
            found["s"] = {name: self.streams[name].to_json() for name in sorted(self.streams)}
        return found | {"first": True} if self.first else found

    def ranges(self, end: QueryOffsets) -> dict[str, tuple[StreamUuid, dict[int, OffsetRange]]]:
        """Return the ranges of the batch from these offsets to ``end``; depends only on the two.

        Raises:
            StreamRecreatedError: the two belong to different incarnations of a stream.
            OffsetOutOfRangeError: the end is below the start.
        """
        if end.first or self == end:
            return {}  # an empty batch
        found = {}
        for name, offsets in sorted(end.streams.items()):
            before = self.streams.get(name)
            if before is not None and before.uuid != offsets.uuid:
                raise recreated(name, before.uuid, offsets.uuid)
            known = {} if before is None else before.ends
            found[name] = (
                offsets.uuid,
                {
                    partition: _range(name, partition, known, offsets)
                    for partition in sorted(offsets.ends)
                },
            )
        return found


def parse_offsets(body: object, *, single: str | None, names: Mapping[str, str]) -> QueryOffsets:
    """Parse either of the two JSON forms.

    Args:
        body: the JSON from the checkpoint.
        single: the query's only stream; None if the query may have several.
        names: stream name by uuid, for the short form in a query that has several streams now.

    Raises:
        InvalidRequestError: not offsets of this source, or offsets of a stream that the query does
            not read any more.
    """
    if not isinstance(body, dict) or body.get("v") != _VERSION:
        raise InvalidRequestError(f"not offsets of a headwater stream: {str(body)[:200]}")
    first = body.get("first", False)
    if type(first) is not bool:
        raise InvalidRequestError(f"offsets: first must be true or false, not {str(first)[:100]}")
    if "s" not in body:
        offsets = _stream_offsets(body)
        name = single or names.get(offsets.uuid)
        if name is None:
            raise InvalidRequestError(
                f"the checkpoint belongs to stream {offsets.uuid}, which this query does not "
                "read; start with another checkpoint"
            )
        return QueryOffsets({name: offsets}, first)
    streams = body["s"]
    if not isinstance(streams, dict) or not all(is_stream_name(name) for name in streams):
        raise InvalidRequestError(f"not offsets by stream: {str(streams)[:200]}")
    found = {name: _stream_offsets(value) for name, value in streams.items()}
    if single is not None and set(found) != {single}:
        raise InvalidRequestError(
            f"the checkpoint belongs to streams {', '.join(sorted(found))}, but this query reads "
            f"{single}. Read all of these streams, or start with another checkpoint"
        )
    return QueryOffsets(found, first)


def recreated(name: str, expected: str, found: str) -> StreamRecreatedError:
    """Return the error for a stream that was created again under its name."""
    return StreamRecreatedError(
        f"stream {name!r} was deleted and created again: the query has read {expected}, but the "
        f"name belongs to {found} now. Start a new query with another checkpoint",
        stream=name,
        expected=expected,
        found=found,
    )


def _range(
    name: str, partition: int, known: Mapping[int, Offset], offsets: StreamOffsets
) -> OffsetRange:
    end = offsets.ends[partition]
    start = offsets.starts.get(partition, known.get(partition))
    if start is None:
        raise InvalidRequestError(
            f"the checkpoint's offsets have no beginning for {name}/{partition}"
        )
    if end < start:
        raise OffsetOutOfRangeError(
            f"{name}/{partition}: the end {end} of a batch is below its start {start}",
            offset=end,
            start=start,
            end=end,
        )
    return OffsetRange(start, end)


def _stream_offsets(body: object) -> StreamOffsets:
    if not isinstance(body, dict):
        raise InvalidRequestError(f"not offsets of a stream: {str(body)[:200]}")
    uuid = body.get("id")
    if not isinstance(uuid, str) or not is_uuid(uuid):
        raise InvalidRequestError(f"offsets: id {str(uuid)[:100]} is not a uuid")
    ends, starts = _offsets(body.get("p")), _offsets(body.get("from", {}))
    return StreamOffsets(StreamUuid(uuid), ends, starts, _lineage_ids(body.get("h", {}), ends))


def _lineage_ids(body: object, ends: Mapping[int, Offset]) -> dict[int, str]:
    if not isinstance(body, dict):
        raise InvalidRequestError(f"not leaderships by partition: {str(body)[:200]}")
    found = {}
    for partition, lineage_id in body.items():
        number = int(partition) if _is_number(partition) else -1
        if number not in ends or not isinstance(lineage_id, str) or not is_lineage_id(lineage_id):
            raise InvalidRequestError(f"not leaderships by partition: {str(body)[:200]}")
        found[number] = lineage_id
    return found


def _offsets(body: object) -> dict[int, Offset]:
    if not isinstance(body, dict):
        raise InvalidRequestError(f"not offsets by partition: {str(body)[:200]}")
    found = {}
    for partition, offset in body.items():
        if not _is_number(partition) or type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise InvalidRequestError(f"not offsets by partition: {str(body)[:200]}")
        found[int(partition)] = Offset(offset)
    return found


def _is_number(partition: object) -> bool:
    return isinstance(partition, str) and partition.isascii() and partition.isdigit()


def _numbers(offsets: Mapping[int, Offset]) -> dict[str, int]:
    return {str(partition): int(offset) for partition, offset in sorted(offsets.items())}
