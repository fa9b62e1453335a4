"""Judges the history of one consumer group: who was given what, and which commits were confirmed.

A recorder notes what members saw, in the order of one clock. Under one claim (its group epoch) a
partition is read by one process. Times are those of the recorder, in any unit.

Liftbridge's protocol fences less (`fenced=False`): its commits name no epoch, and its members may
have messages in their hands when the next owner begins. All else holds there, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class GroupAnomaly(Enum):
    """What is wrong with a group's history."""

    TWO_READERS = "two_readers"  # two processes were given records under one claim
    OLD_READER = "old_reader"  # given under an older claim, after a newer one was read
    AGAIN = "again"  # a later owner was given what was below a confirmed position
    SKIPPED = "skipped"  # a later owner began above every position that was ever sent
    STEP = "step"  # within one claim an offset came again, or was left out
    UNSEEN = "unseen"  # nobody was ever given it
    UNFENCED = "unfenced"  # a commit begun under an older claim was stored after a newer was read
    AHEAD = "ahead"  # a commit was confirmed of what its member was never given
    EXPELLED_ALIVE = "expelled_alive"  # while it believes in its claims after a heartbeat


@dataclass(frozen=True, slots=True)
class GroupViolation:
    """One thing that is wrong."""

    kind: GroupAnomaly
    partition: str
    offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: partition {self.partition} offset {self.offset} {self.detail}"


@dataclass(frozen=True, slots=True)
class GivenRange:
    """A process was given ``[start, end)`` under a claim."""

    partition: str
    process: str
    epoch: int
    start: int
    end: int
    at: int


@dataclass(slots=True)
class SentCommit:
    """A commit of a position, and when it was confirmed, if it ever was."""

    partition: str
    process: str
    epoch: int
    offset: int
    begun_at: int
    confirmed_at: int | None = None


@dataclass(frozen=True, slots=True)
class ChosenPosition:
    """Somebody set the position on purpose: a seek under a claim, or an operator (epoch 0)."""

    partition: str
    epoch: int
    offset: int
    at: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An operator gave up the records at ``end`` and above, between two times."""

    partition: str
    end: int
    since: int
    until: int


@dataclass(slots=True)
class GroupHistory:
    """What the members of a group saw. One thread at a time; the caller locks."""

    given: list[GivenRange] = field(default_factory=list)
    commits: list[SentCommit] = field(default_factory=list)
    chosen: list[ChosenPosition] = field(default_factory=list)
    lost: list[tuple[str, int, int]] = field(default_factory=list)  # partition, claim, at
    # Partition, process, at: before a process asked where to begin. Else it is told with its claim.
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    expelled: list[tuple[str, int, int]] = field(default_factory=list)  # process, at, belief
    heartbeats: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # sent, answered at
    given_up: list[GivenUp] = field(default_factory=list)

    def give(self, *place: str, epoch: int, start: int, end: int, at: int) -> None:
        """Note records that ``place``, a partition and a process, were given."""
        partition, process = place
        self.given.append(GivenRange(partition, process, epoch, start, end, at))

    def commit(self, *place: str, epoch: int, offset: int, at: int) -> SentCommit:
        """Note a commit before it is sent."""
        partition, process = place
        self.commits.append(SentCommit(partition, process, epoch, offset, at))
        return self.commits[-1]

    def choose(self, partition: str, *, epoch: int, offset: int, at: int) -> None:
        """Note a position that somebody chose."""
        self.chosen.append(ChosenPosition(partition, epoch, offset, at))


@dataclass(frozen=True, slots=True)
class _Partition:
    """What the history says of one partition, in order of time."""

    given: list[GivenRange]
    commits: list[SentCommit]
    chosen: list[ChosenPosition]
    lost: dict[int, list[int]]  # by claim: when its process was told
    asked: dict[str, list[int]]  # by process
    given_up: list[GivenUp]

    @classmethod
    def of(cls, history: GroupHistory, partition: str) -> _Partition:
        """Pick what is about one partition."""
        lost: dict[int, list[int]] = {}
        for name, epoch, at in sorted(history.lost, key=lambda one: one[2]):
            if name == partition:
                lost.setdefault(epoch, []).append(at)
        asked: dict[str, list[int]] = {}
        for name, process, at in sorted(history.asked, key=lambda one: one[2]):
            if name == partition:
                asked.setdefault(process, []).append(at)
        given = [one for one in history.given if one.partition == partition]
        return cls(
            sorted(given, key=lambda one: one.at),
            [one for one in history.commits if one.partition == partition],
            sorted(
                (one for one in history.chosen if one.partition == partition),
                key=lambda one: one.at,
            ),
            lost,
            asked,
            [one for one in history.given_up if one.partition == partition],
        )

    def reading(self, one: GivenRange) -> tuple[int, int]:
        """Return the claim, and how often its process was told before that it was lost."""
        return one.epoch, bisect_right(self.lost.get(one.epoch, []), one.at)

    def knew_at(self, one: GivenRange) -> int:
        """Return a time: what was committed until then, the process has to know."""
        times = self.asked.get(one.process, [])
        before = bisect_right(times, one.at)
        return times[before - 1] if before else one.at

    def left_of(self, commit: SentCommit, one: GivenRange) -> int:
        """Return what is left of a confirmed position: its records may have been given up since."""
        confirmed_at = commit.confirmed_at or 0
        ends = [it.end for it in self.given_up if confirmed_at <= it.until and it.since <= one.at]
        return min([commit.offset, *ends])


def judge_group(
    history: GroupHistory,
    ends: dict[str, int] | None = None,
    *,
    begin: int = 0,
    fenced: bool = True,
) -> list[GroupViolation]:
    """Return what is wrong; ``ends``: the group has read every partition up to there."""
    found = list(_expelled(history))
    partitions = {one.partition for one in history.given} | set(ends or ())
    for partition in sorted(partitions):
        here = _Partition.of(history, partition)
        found += _readers(here.given, fenced=fenced)
        found += _steps(here)
        found += _owners(here, begin)
        found += _fenced(here) if fenced else ()
        found += _ahead(here)
        if ends is not None:
            found += _seen(partition, here.given, begin, ends.get(partition, begin))
    return found


def _expelled(history: GroupHistory) -> Iterator[GroupViolation]:
    for process, at, belief in history.expelled:
        heard = [
            sent
            for sent, answered_at in history.heartbeats.get(process, ())
            if answered_at <= at < sent + belief  # a later answer is about another membership
        ]
        if heard:
            detail = f"{process} was expelled at {at}; its heartbeat of {heard[-1]} was answered"
            yield GroupViolation(GroupAnomaly.EXPELLED_ALIVE, "", 0, detail)


def _readers(given: list[GivenRange], *, fenced: bool) -> Iterator[GroupViolation]:
    owner: dict[int, str] = {}
    newest = 0
    for one in given:
        first = owner.setdefault(one.epoch, one.process)
        if first != one.process:
            detail = f"{first} and {one.process} read under claim {one.epoch}"
            yield _of(GroupAnomaly.TWO_READERS, one, detail)
        if fenced and one.epoch < newest:
            detail = f"{one.process} was given it under claim {one.epoch} after claim {newest}"
            yield _of(GroupAnomaly.OLD_READER, one, detail)
        newest = max(newest, one.epoch)


def _steps(here: _Partition) -> Iterator[GroupViolation]:
    """Within a claim each range begins where the last one ended, or where somebody sought."""
    last: dict[tuple[int, int], GivenRange] = {}
    for one in here.given:
        reading = here.reading(one)
        before = last.get(reading)
        last[reading] = one
        if before is None or one.start == before.end:
            continue
        sought = [it.offset for it in here.chosen if it.epoch == one.epoch and it.at >= before.at]
        if one.start not in sought:
            detail = f"{one.process} was given {one.start} where {before.end} was due"
            yield _of(GroupAnomaly.STEP, one, detail)


def _owners(here: _Partition, begin: int) -> Iterator[GroupViolation]:
    """A claim begins between the newest confirmed position and the newest that was sent."""
    seen: set[tuple[int, int]] = set()
    for one in here.given:
        if here.reading(one) in seen:
            continue
        seen.add(here.reading(one))
        picks = [it for it in here.chosen if it.at <= one.at]
        since = picks[-1].at if picks else -1
        base = min(picks[-1].offset, begin) if picks else begin
        knew_at = here.knew_at(one)
        sent = [it.offset for it in here.commits if it.begun_at <= one.at]
        sent += [it.offset for it in picks]
        confirmed = [
            here.left_of(it, one)
            for it in here.commits
            if it.confirmed_at is not None and it.confirmed_at <= knew_at and it.begun_at > since
        ]
        if one.start < max(confirmed, default=base):
            detail = f"{one.process} began at {one.start} below {max(confirmed, default=base)}"
            yield _of(GroupAnomaly.AGAIN, one, detail)
        if one.start > max(sent, default=begin):
            detail = f"{one.process} began at {one.start} above {max(sent, default=begin)}"
            yield _of(GroupAnomaly.SKIPPED, one, detail)


def _fenced(here: _Partition) -> Iterator[GroupViolation]:
    """No commit is stored that was begun after a newer claim was read."""
    first_at: dict[int, int] = {}  # by claim
    for one in here.given:
        first_at.setdefault(one.epoch, one.at)
    for it in here.commits:
        newer = [epoch for epoch, at in first_at.items() if epoch > it.epoch and at < it.begun_at]
        if it.confirmed_at is not None and newer:
            detail = f"{it.process} committed under {it.epoch}; {min(newer)} was read already"
            yield GroupViolation(GroupAnomaly.UNFENCED, it.partition, it.offset, detail)


def _ahead(here: _Partition) -> Iterator[GroupViolation]:
    """No commit is stored of what its member was not given before it began."""
    known: dict[int, tuple[list[int], list[int]]] = {}  # by claim: times, and how far it was given
    for one in here.given:
        times, reached = known.setdefault(one.epoch, ([], []))
        times.append(one.at)
        reached.append(max([one.end, *reached[-1:]]))
    for it in here.commits:
        times, reached = known.get(it.epoch, ([], []))
        before = bisect_right(times, it.begun_at)
        if it.confirmed_at is not None and before and it.offset > reached[before - 1]:
            detail = f"{it.process} committed {it.offset}, above what it was given"
            yield GroupViolation(GroupAnomaly.AHEAD, it.partition, it.offset, detail)


def _seen(
    partition: str, given: list[GivenRange], begin: int, end: int
) -> Iterator[GroupViolation]:
    reached = begin
    for one in sorted(given, key=lambda it: (it.start, it.end)):
        if one.start > reached:
            break
        reached = max(reached, one.end)
    if reached < end:
        detail = f"[{reached}, …) of [{begin}, {end}) was given to nobody"
        yield GroupViolation(GroupAnomaly.UNSEEN, partition, reached, detail)


def _of(kind: GroupAnomaly, one: GivenRange, detail: str) -> GroupViolation:
    return GroupViolation(kind, one.partition, one.start, detail)
