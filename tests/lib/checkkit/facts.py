"""A history as arrays, and what follows from it about every record; the checks read only this."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from broker.model.records import AckPolicy
from checkkit.history import NEVER, NOBODY, POLICIES, Columns, History
from checkkit.readings import NO_TIME, Ints, PartReading, Range, RowColumns, Rows

Flags = npt.NDArray[np.bool_]
_ALL: Final = POLICIES.index(AckPolicy.ALL)
_LEADER: Final = POLICIES.index(AckPolicy.LEADER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the system under test promises beyond, or short of, the usual."""

    leader_acks_survive: bool = False  # one replica, on a disk that keeps what it synced
    transport_doubles: bool = False  # a message may arrive twice although it was sent once
    expires: bool = False  # retention: a stream may begin above 0


class Facts:
    """Arrays over records, acks and rows; as of now, the history may go on."""

    def __init__(self, history: History, rules: Rules) -> None:
        self.history, self.rules = history, rules
        self._logs: dict[int, tuple[Rows, Log]] = {}  # by identity: a read is judged repeatedly
        self.record = _arrays(history.records)
        self.ack = acks = _arrays(history.acks)
        self.record_of_value = ints(history.record_of_value)
        policy = self.record["policy"]
        self.survives: Flags = (policy == _ALL) | (
            (policy == _LEADER) if rules.leader_acks_survive else False
        )
        self.is_ordered: Flags = np.isin(self.record["producer"], sorted(history.ordered))
        told = (acks["offset"] >= 0) & (self._policy_of(acks) != POLICIES.index(AckPolicy.NONE))
        self.ack = acks = {name: column[told] for name, column in acks.items()}
        self.ack_survives = self.survives[acks["record"]] & ~self._forgiven(acks)
        self._find_first_acks()
        self.failed: Flags = (self.record["fails"] >= self.record["attempts"]) & (
            self.acked_ns == NEVER
        )

    def _policy_of(self, acks: dict[str, Ints]) -> Ints:
        return self.record["policy"][acks["record"]]

    def _find_first_acks(self) -> None:
        """By record: when, where and in which epoch it was first acknowledged."""
        count = len(self.record["value"])
        first_records, first = np.unique(self.ack["record"], return_index=True)
        self.acked_ns = np.full(count, NEVER, np.int64)
        self.acked_offset = np.full(count, NOBODY, np.int64)
        self.acked_epoch = np.full(count, NOBODY, np.int64)
        self.ack_is_kept: Flags = np.zeros(count, np.bool_)
        self.acked_ns[first_records] = self.ack["at_ns"][first]
        self.acked_offset[first_records] = self.ack["offset"][first]
        self.acked_epoch[first_records] = self.ack["epoch"][first]
        self.ack_is_kept[first_records] = self.ack_survives[first]

    def _forgiven(self, acks: dict[str, Ints]) -> Flags:
        flags: Flags = np.zeros(len(acks["record"]), np.bool_)
        for partition, choices in self.history.forgiven.items():
            for end, at_ns in choices:
                here = acks["partition"] == partition
                flags |= here & (acks["offset"] >= end) & (acks["at_ns"] <= at_ns)
        return flags

    def stored_again(self, record: int, partition: int, lower: int, offset: int) -> bool:
        """Tell whether a retry met a leader whose log an accepted loss took the first copy from.

        The table keeps that copy, below where the loss begins, and nobody acknowledged it.
        """
        retried = self.record["attempts"][record] > 1 and self.acked_offset[record] != lower
        return bool(retried) and any(
            lower < end <= offset and self.record["first_ns"][record] <= at_ns
            for end, at_ns in self.history.forgiven.get(partition, ())
        )

    def name(self, record: int) -> str:
        """Return what to call a record."""
        return self.history.name(int(record))

    def records_of(self, values: Ints) -> Ints:
        """Return the record of each value, NOBODY where nobody sent it."""
        known = values < len(self.record_of_value)
        if not len(self.record_of_value):
            return np.full(len(values), NOBODY, np.int64)
        return np.where(known, self.record_of_value[np.where(known, values, 0)], NOBODY)

    def log_of(self, rows: Rows) -> Log:
        """Return rows with their contents as numbers, in the order in which they were read."""
        known = self._logs.get(id(rows))
        if known is None:
            columns = rows if isinstance(rows, RowColumns) else RowColumns.of(rows)
            values = np.array(self.history.values_of(columns.fingerprints), np.int64)
            known = rows, Log(columns.offsets, values, columns.leader_epochs, columns.timestamps_us)
            self._logs[id(rows)] = known  # with the rows, so that their identity stays theirs
        return known[1]

    def other_time(self, values: Ints, times_us: Ints) -> Flags:
        """Tell which rows have another time than the one that their record was sent with."""
        records = self.records_of(values)
        sent_us = np.full(len(values), NO_TIME, np.int64)
        sent_us[records != NOBODY] = self.record["timestamp_us"][records[records != NOBODY]]
        flags: Flags = (sent_us != NO_TIME) & (sent_us != times_us)
        return flags

    def holes(self, part: PartReading) -> list[Range]:
        """Return the ranges in which a read of this partition needs no rows."""
        return [*part.holes, *self.history.holes.get(part.partition, ())]


@dataclass(frozen=True, slots=True)
class Log:
    """Rows of one partition as four columns."""

    offsets: Ints
    values: Ints
    epochs: Ints
    times_us: Ints

    def __len__(self) -> int:
        return len(self.offsets)

    def __add__(self, other: Log) -> Log:
        return Log(
            np.concatenate([self.offsets, other.offsets]),
            np.concatenate([self.values, other.values]),
            np.concatenate([self.epochs, other.epochs]),
            np.concatenate([self.times_us, other.times_us]),
        )

    def take(self, chosen: Ints | Flags) -> Log:
        """Return some rows, by flag or by number."""
        return Log(
            self.offsets[chosen], self.values[chosen], self.epochs[chosen], self.times_us[chosen]
        )

    def sorted(self) -> Log:
        """Return the rows by offset."""
        if (self.offsets[1:] > self.offsets[:-1]).all():
            return self
        return self.take(np.argsort(self.offsets, kind="stable"))

    def distinct(self) -> Log:
        """Return the rows by offset, of each offset the first that was read."""
        if (self.offsets[1:] > self.offsets[:-1]).all():
            return self
        _, first = np.unique(self.offsets, return_index=True)
        return self.take(first)

    def find(self, offsets: Ints) -> tuple[Flags, Ints]:
        """Tell for each offset whether it is here, and in which row; needs :meth:`distinct`."""
        if not len(self):
            return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
        place = np.minimum(np.searchsorted(self.offsets, offsets), len(self) - 1)
        return self.offsets[place] == offsets, place

    def equals(self, other: Log) -> bool:
        """Tell whether both hold the same rows in the same order."""
        return (
            np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.epochs, other.epochs)
            and np.array_equal(self.times_us, other.times_us)
        )


EMPTY: Final = Log(*(np.zeros(0, np.int64) for _ in range(4)))


def ints(column: array[int] | Sequence[int]) -> Ints:
    """Copy a column into an array."""
    return np.array(column, np.int64)


def _arrays(columns: Columns) -> dict[str, Ints]:
    return {name: ints(columns[name]) for name in columns.names}


def groups(keys: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each key with the numbers of its rows, which keep their order."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    found = keys[order]
    bounds = np.flatnonzero(found[1:] != found[:-1]) + 1
    for rows in np.split(order, bounds):
        yield int(keys[rows[0]]), rows


def within(offsets: Ints, ranges: Sequence[Range]) -> Flags:
    """Tell which offsets lie in one of the half-open ranges."""
    flags: Flags = np.zeros(len(offsets), np.bool_)
    for start, end in ranges:
        flags |= (offsets >= start) & (offsets < end)
    return flags


def newest_before(at_ns: Ints, values: Ints, began_ns: Ints) -> tuple[Ints, Ints]:
    """For each beginning: the largest value that was known before it, and whose (or NOBODY)."""
    order = np.argsort(at_ns, kind="stable")
    times, ordered = at_ns[order], values[order]
    largest = np.maximum.accumulate(ordered) if len(order) else ordered
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = ordered[1:] > largest[:-1]
    holder = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    place = np.searchsorted(times, began_ns, side="left") - 1
    none = place < 0
    safe = np.where(none, 0, place)
    if not len(order):
        nothing = np.full(len(began_ns), NOBODY, np.int64)
        return nothing, nothing.copy()
    return (
        np.where(none, NOBODY, largest[safe]),
        np.where(none, NOBODY, order[holder[safe]]),
    )
