"""The reading side of a partition's log: any thread, while another thread writes."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, decode_segment_header
from broker.errors import (
    HeadwaterError,
    IndexCorruptError,
    OffsetOutOfRangeError,
    OverloadedError,
    SegmentCorruptError,
)
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from broker.ports.system import File
from broker.storage.log_folder import LogFolder
from broker.storage.no_room import PROCESS_LIMITS, lacks_descriptor, no_room
from broker.storage.segments.damage import DamagedRange
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.reader import (
    READ_BATCHES_MAX,
    DamageMetError,
    Place,
    SegmentView,
    first_reaching,
    read_batches,
)
from broker.storage.segments.scan import ValidBatch, Window, scan
from broker.storage.segments.segment import Segment, read_index

_PLACES_MAX: Final = 256


class LogState:
    """The state that the writer and the readers share. The writer replaces values as a whole.

    ``generation`` grows when the writer removes bytes that a reader may still use. A reader that
    met damage reads again if ``generation`` has grown meanwhile. While the file of a segment is
    exchanged, a reader may have the facts of one file and the bytes of the other; so a reader that
    met damage waits for the end of the exchange before it looks at ``generation``.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        log_start: Offset,
        log_end: Offset,
        damaged: Sequence[DamagedRange] = (),
    ) -> None:
        self.generation = -1
        self.replace(segments, log_start, log_end, damaged)
        self.swapping = threading.Lock()  # held while a segment's file is exchanged
        self._sparse: tuple[tuple[Segment, ...], Offset] = ((), Offset(0))

    def replace(
        self,
        segments: Sequence[Segment],
        log_start: Offset,
        log_end: Offset,
        damaged: Sequence[DamagedRange],
    ) -> None:
        """Take over what an opening of the log has found."""
        self.segments, self.damaged = tuple(segments), tuple(damaged)
        self.log_start, self.log_end = log_start, log_end
        self.generation += 1

    @property
    def sparse_end(self) -> Offset:
        """The end of the last segment that key compaction wrote, or 0. Any thread; quick."""
        segments = self.segments
        known, end = self._sparse
        if known is not segments:  # all but the last one are sealed: they stay as they are
            ends = (one.end_offset for one in reversed(segments[:-1]) if one.sparse)
            end = next(ends, Offset(0))
            self._sparse = segments, end
        last = segments[-1] if segments else None
        return last.end_offset if last is not None and last.sparse else end


class LogReader:
    """Finds and checks batches. Remembers where recent reads ended: most reads continue there."""

    def __init__(
        self, folder: LogFolder, handles: HandlePool, state: LogState, *, index_interval_bytes: int
    ) -> None:
        self._folder = folder
        self._handles = handles
        self._state = state
        self._interval_bytes = index_interval_bytes
        self._places: OrderedDict[Offset, tuple[Segment, int]] = OrderedDict()
        self._places_lock = threading.Lock()

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return checked batches; see ``PartitionReader.read``."""
        while True:
            generation = self._state.generation
            self._check_range(start, end)
            try:
                return self._read(start, end, bytes_max)
            except SegmentCorruptError as error:
                if not self._has_changed(generation):
                    raise self._with_readable_offset(error) from error

    def _has_changed(self, generation: int) -> bool:
        """Tell whether the writer has removed bytes since; waits for the end of an exchange."""
        with self._state.swapping:
            return self._state.generation != generation

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the first offset whose batch reaches ``timestamp_us``, else the log end.

        Raises:
            SegmentCorruptError: damage below that offset may hold the answer.
        """
        while True:
            generation = self._state.generation
            try:
                found = self._offset_at(timestamp_us)
            except SegmentCorruptError as error:
                if not self._has_changed(generation):
                    raise self._with_readable_offset(error) from error
            else:
                if not self._has_changed(generation):
                    return found  # no segment was freed or exchanged during the search

    def _offset_at(self, timestamp_us: int) -> Offset:
        damaged = self._state.damaged
        found = self._state.log_end
        for segment in self._state.segments:
            if segment.max_timestamp_us >= timestamp_us and not segment.empty:
                found = max(self._state.log_start, self._offset_in(segment, timestamp_us))
                break
        else:
            if damaged:
                raise damaged[0].error()
        for damage in damaged:  # the first record at or after the time may be in the damage
            if damage.offsets.start < found:
                raise damage.error()
        return found

    def forget_places(self) -> None:
        """Forget the positions of recent reads: after a truncation they are wrong."""
        with self._places_lock:
            self._places.clear()

    # ------------------------------------------------------------------ helpers

    def _with_readable_offset(self, error: SegmentCorruptError) -> SegmentCorruptError:
        """Return the error with the first offset behind the damage that can be read.

        The record at that offset is read and checked here, before the error promises it.
        """
        offset, end = error.facts.get("end_offset"), self._state.log_end
        while offset is not None and offset < end:
            try:
                self._read(offset, Offset(offset + 1), 1)
            except SegmentCorruptError as next_damage:
                following = next_damage.facts.get("end_offset")
                offset = following if following is not None and following > offset else None
            except HeadwaterError:  # for example overloaded: not known whether it can be read
                return error
            else:
                break
        if offset is None or offset >= end:
            message, offset = f"{error.message}; no record behind it can be read", None
        else:
            message = f"{error.message}; records can be read again from offset {offset}"
        return SegmentCorruptError(message, **{**error.facts, "readable_from": offset})

    def _check_range(self, start: Offset, end: Offset) -> None:
        first, last = self._state.log_start, self._state.log_end
        if not first <= start <= end <= last:
            raise OffsetOutOfRangeError(
                f"the offsets [{start}, {end}) are not within the local log [{first}, {last})",
                offset=start if start < first or start > last else end,
                start=first,
                end=last,
            )

    def _read(self, start: Offset, end: Offset, bytes_max: int) -> list[StoredBatch]:
        end = self._end_before_damage(start, end)
        segments = self._state.segments
        at = max(0, bisect_right(segments, start, key=lambda one: one.base_offset) - 1)
        found: list[StoredBatch] = []
        for segment in segments[at:]:
            if start >= end or (found and bytes_max <= 0) or len(found) >= READ_BATCHES_MAX:
                break
            stop = min(end, segment.end_offset)
            try:
                batches = self._read_part(segment, OffsetRange(start, stop), bytes_max, not found)
            except SegmentCorruptError:
                if found:  # a read of later records raises the error
                    break
                raise
            if not batches:
                break
            found += batches
            start = batches[-1].header.end_offset
            bytes_max -= sum(batch.header.size for batch in batches)
            if start < stop:
                break
        return found

    def _end_before_damage(self, start: Offset, end: Offset) -> Offset:
        for damage in self._state.damaged:
            if start in damage.offsets:
                raise damage.error()
            if start < damage.offsets.start:
                end = min(end, damage.offsets.start)
        return end

    def _read_part(
        self, segment: Segment, wanted: OffsetRange, bytes_max: int, first_always: bool
    ) -> list[StoredBatch]:
        path = self._folder.segment_file(segment.base_offset, "log")
        try:
            index = self._index(segment)
            with self._handles.use(path, self._header_check(segment)) as file:
                # Take the end first: the size that is taken after it covers at least this end.
                end = segment.end_offset
                view = SegmentView(file, segment.base_offset, end, segment.size_bytes)
                place = self._place(wanted.start, segment, index, view)
                batches, behind = read_batches(
                    view, place, wanted, bytes_max=bytes_max, first_always=first_always
                )
        except DamageMetError as damage:
            raise self._with_path(path, damage) from damage
        except OSError as cause:
            rest = OffsetRange(wanted.start, segment.end_offset)
            raise _unreadable(path, cause, rest) from cause
        if batches:
            self._remember(segment, behind)
        return batches

    def _place(
        self, offset: Offset, segment: Segment, index: SegmentIndex, view: SegmentView
    ) -> Place:
        with self._places_lock:
            known = self._places.get(offset)
        if known is not None and known[0] is segment and view.base < offset:
            return Place(offset, known[1])
        entry = index.place_of(offset)
        return view.first if entry is None else Place(*entry)

    def _remember(self, segment: Segment, place: Place) -> None:
        with self._places_lock:
            self._places[place.offset] = segment, place.position
            self._places.move_to_end(place.offset)
            if len(self._places) > _PLACES_MAX:
                self._places.popitem(last=False)

    def _offset_in(self, segment: Segment, timestamp_us: int) -> Offset:
        path = self._folder.segment_file(segment.base_offset, "log")
        try:
            entry = self._index(segment).place_before(timestamp_us)
            with self._handles.use(path, self._header_check(segment)) as file:
                end = segment.end_offset
                view = SegmentView(file, segment.base_offset, end, segment.size_bytes)
                place = view.first if entry is None else Place(*entry)
                return first_reaching(view, place, timestamp_us)
        except DamageMetError as damage:
            raise self._with_path(path, damage) from damage
        except FileNotFoundError as cause:
            # The log forgets a segment before it removes the file. If the log still has it, the
            # disk has lost the file, and the record that is searched may have been in it.
            if any(one.base_offset == segment.base_offset for one in self._state.segments):
                raise _unreadable(path, cause, _whole(segment)) from cause
            return segment.end_offset  # freed during the search: the caller searches again
        except OSError as cause:
            raise _unreadable(path, cause, _whole(segment)) from cause

    def _index(self, segment: Segment) -> SegmentIndex:
        """Return the segment's index; a sealed segment's is loaded or rebuilt on first use."""
        if segment.index is None:
            try:
                entries = read_index(self._folder, segment.base_offset).entries
                segment.index = SegmentIndex(self._interval_bytes, entries)
            except IndexCorruptError:
                segment.index = self._rebuilt_index(segment)
        return segment.index

    def _rebuilt_index(self, segment: Segment) -> SegmentIndex:
        index = SegmentIndex(self._interval_bytes)
        path = self._folder.segment_file(segment.base_offset, "log")
        highest_us, force = 0, False
        with self._handles.use(path, self._header_check(segment)) as file:
            window = Window(file, segment.size_bytes)
            for one in scan(window, position=SEGMENT_HEADER_SIZE, offset=segment.base_offset):
                if isinstance(one, ValidBatch):
                    index.note(one.header.base_offset, one.position, highest_us, force=force)
                    highest_us = max(highest_us, one.header.max_timestamp_us)
                force = not isinstance(one, ValidBatch)
        return index

    def _header_check(self, segment: Segment) -> Callable[[File], None] | None:
        """Return the check of a sealed segment's file when it is opened.

        A segment of another log may have been put in its place since recovery.
        """
        return partial(self._require_own, segment) if segment.sealed else None

    def _require_own(self, segment: Segment, file: File) -> None:
        base, path = segment.base_offset, self._folder.segment_file(segment.base_offset, "log")
        try:
            header = decode_segment_header(file.read_at(0, SEGMENT_HEADER_SIZE))
        except SegmentCorruptError as error:
            raise SegmentCorruptError(
                f"{path}: segment header: {error.message}",
                path=path,
                position=0,
                offset=base,
                end_offset=segment.end_offset,
            ) from error
        if (header.partition_id, header.base_offset) != (self._folder.partition_id, base):
            raise SegmentCorruptError(
                f"{path} holds the segment {header.base_offset} of {header.partition_id}, not the "
                f"segment {base} of this log",
                path=path,
                position=0,
                offset=base,
                end_offset=segment.end_offset,
            )

    def _with_path(self, path: str, damage: DamageMetError) -> SegmentCorruptError:
        return SegmentCorruptError(
            f"{path} is damaged at position {damage.position}, offsets "
            f"[{damage.start}, {damage.end}): {damage.message}",
            path=path,
            position=damage.position,
            offset=damage.start,
            end_offset=damage.end,
        )


def _whole(segment: Segment) -> OffsetRange:
    return OffsetRange(segment.base_offset, segment.end_offset)


def _unreadable(path: str, cause: OSError, offsets: OffsetRange) -> HeadwaterError:
    """Translate an error of the operating system for a reader of ``path``."""
    if lacks_descriptor(cause):
        return no_room(f"reading {path}", cause, path=path)
    if cause.errno in PROCESS_LIMITS:
        return OverloadedError(f"{path} cannot be read now: {cause}", path=path)
    return SegmentCorruptError(
        f"{path} cannot be read, offsets {offsets}: {cause}",
        path=path,
        position=None,
        offset=offsets.start,
        end_offset=offsets.end,
    )
