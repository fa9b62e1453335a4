"""A member with Headwater's client: polls, works for a while, commits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from broker.errors import (
    FencedError,
    NoPositionError,
    OffsetOutOfRangeError,
    PurgedError,
    StaleMemberError,
    TruncatedError,
    UnavailableError,
)
from chaoskit.actors.notes import Notes
from chaoskit.actors.task import MemberTask
from headwater.client import GroupConsumer
from headwater.client.group.records import AssignedPartition

SESSION_MS: Final = 3_000
_COMMIT_MS: Final = 400
_COMMIT_S: Final = 5.0
_POLL_S: Final = 0.2
_WORK_S: Final = 0.05
_COMMIT_SHARE: Final = 0.1  # of turns
# One partition has no position, or its records are gone: the application chooses one.
_TO_CHOOSE: Final = (NoPositionError, OffsetOutOfRangeError, PurgedError, TruncatedError)


class OwnMember:
    """One member, in the thread that calls :meth:`run`."""

    def __init__(self, task: MemberTask) -> None:
        self._task = task
        self._notes = Notes(Path(task.notes))
        self._chance = random.Random(task.seed)
        self._given: dict[int, tuple[int, int]] = {}  # by partition: claim, and where it is
        self._noted: dict[int, tuple[int, int]] = {}  # as far as commits of it were noted
        self._unconfirmed: dict[int, list[int]] = {}  # their numbers
        self._decided: tuple[int, int] = (0, 0)  # claim, and when the client gave the last rows
        self._consumer: GroupConsumer

    def run(self, over: threading.Event) -> None:
        """Read until it is over, or another process takes this member's place."""
        task = self._task
        with task.login.client(task.addresses) as client:
            self._consumer = client.consumer(
                task.stream,
                group=task.group,
                member_id=task.member or None,
                columns=["offset"],
                commit_ms=None if task.commits_itself else _COMMIT_MS,
                session_ms=SESSION_MS,
                on_revoked=self._revoked,
                on_lost=self._lost,
            )
            self._listen()
            try:
                with self._consumer:
                    while not over.is_set():
                        self._turn()
            except StaleMemberError:
                return
        self._notes.close()

    def _listen(self) -> None:
        """Hear the moment and the claim of each decision to give rows.

        The decision is the promise: a process may be frozen between it and the next line here.
        """
        core: Any = self._consumer._core
        give = core.give

        def heard(key: str, epoch: int, end: int, leader_epoch: int, now_ms: int) -> bool:
            self._decided = (epoch, now_ms)
            return bool(give(key, epoch, end, leader_epoch, now_ms))

        core.give = heard

    def _turn(self) -> None:
        if not self._task.commits_itself:
            self._note_commits()  # with the next poll all that was given is processed
        try:
            batch = self._consumer.poll(_POLL_S)
        except _TO_CHOOSE as error:
            self._choose(int(error.facts["partition"]))
            return
        if batch is not None:
            epoch, at_ms = self._decided
            start, end = int(batch.base_offset), int(batch.end_offset)
            self._notes.given(batch.partition, epoch, start, end, at_ms)
            self._given[batch.partition] = epoch, end
            time.sleep(self._chance.uniform(0, _WORK_S))
        if batch is None or self._chance.random() < _COMMIT_SHARE:
            self._commit()

    def _choose(self, partition: int) -> None:
        """Begin anew, at the first record that there is."""
        self._forget(partition)
        epoch = self._epoch(partition)
        self._notes.chose(partition, epoch, 0)
        self._given[partition] = epoch, 0
        self._consumer.seek(self._task.stream, partition, 0)

    def _epoch(self, partition: int) -> int:
        held = self._consumer._core.held.values()
        return max((one.claim.epoch for one in held if one.claim.partition == partition), default=0)

    # ------------------------------------------------------------------ positions

    def _note_commits(self) -> None:
        """Note what the next commit may send, as far as it was not noted before."""
        for partition, place in self._given.items():
            if self._noted.get(partition) != place:
                number = self._notes.sent(partition, *place)
                self._unconfirmed.setdefault(partition, []).append(number)
                self._noted[partition] = place

    def _commit(self) -> None:
        self._note_commits()
        try:
            self._consumer.commit(_COMMIT_S)
        except (FencedError, UnavailableError):
            return
        self._notes.confirmed(one for numbers in self._unconfirmed.values() for one in numbers)
        self._unconfirmed.clear()

    def _revoked(self, places: Sequence[AssignedPartition]) -> None:
        self._commit()
        for place in places:
            self._forget(place.partition)

    def _lost(self, places: Sequence[AssignedPartition]) -> None:
        for place in places:
            known = self._given.get(place.partition)
            if known is not None:
                self._notes.lost(place.partition, known[0])
            self._forget(place.partition)

    def _forget(self, partition: int) -> None:
        for known in (self._given, self._noted, self._unconfirmed):
            known.pop(partition, None)
