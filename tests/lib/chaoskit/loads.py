"""Every client of a chaos run: publishers, followers and subscribers, and the groups.

Of each partition: two NATS publishers, a Flight producer, a publisher of Liftbridge's API, and a
follower. Of the first one: a subscriber of Liftbridge's API. Of the whole stream: a group of
Headwater's clients, and one of Liftbridge's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaoskit.actors.group_load import GroupLoad, GroupLoadConfig, GroupVerdict
from chaoskit.actors.lift_load import LiftFollow, LiftLoad, LiftLoadConfig
from chaoskit.actors.task import Kind
from chaoskit.cluster import ChaosError
from chaoskit.follow_load import FollowLoad
from chaoskit.recorder import ChaosRecorder
from checkkit.check_groups import GivenUp
from clusterkit.login import OPEN, Login
from crashkit.flight_load import FlightLoad, FlightLoadConfig
from crashkit.nats_load import NatsLoad, NatsLoadConfig
from crashkit.records import RecordMaker
from headwater.client import Client

_LARGE_BYTES_MAX: Final = 8192
_BATCHES_PER_S: Final = 30
_BATCH_RECORDS_MAX: Final = 20
_NATS_WINDOWS: Final = (1, 64)
# A message costs these clients ten times as much CPU as a row costs the others.
_LIFT_RECORDS_PER_S: Final = 25
_LIFT_SUBSCRIBED: Final = (0,)  # partitions

Publisher = NatsLoad | FlightLoad | LiftLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsConfig:
    """Whom the clients talk to, and how much."""

    url: str
    liftbridge: str
    nats_port: int
    stream: str
    subject: str
    partitions: int
    records_per_s: int  # of each NATS publisher
    folder: Path  # for what members note
    seed: int
    login: Login = OPEN  # of all of them; NATS has its own

    def subject_of(self, partition: int) -> str:
        """Return the subject of a partition."""
        return self.subject if partition == 0 else f"{self.subject}.{partition}"


class Loads:
    """All clients of a run."""

    def __init__(self, config: LoadsConfig, recorder: ChaosRecorder) -> None:
        self._config, self._recorder = config, recorder
        numbers = range(config.partitions)
        self._publishers = [one for number in numbers for one in self._publishers_of(number)]
        self._followers = [
            FollowLoad(config.url, config.stream, number, recorder, config.login)
            for number in numbers
        ]
        self._subscribers = [
            LiftFollow(config.liftbridge, config.stream, number, config.login)
            for number in _LIFT_SUBSCRIBED
        ]
        self._groups = [
            self._group("headwater", config.url),
            self._group("liftbridge", config.liftbridge),
        ]

    def _group(self, kind: Kind, addresses: str) -> GroupLoad:
        config = self._config
        return GroupLoad(
            GroupLoadConfig(
                kind=kind,
                addresses=addresses,
                url=config.url,
                stream=config.stream,
                folder=config.folder,
                seed=f"{config.seed}/{kind}",
                login=config.login,
            )
        )

    def _publishers_of(self, partition: int) -> list[Publisher]:
        config = self._config
        made: list[Publisher] = []
        for window in _NATS_WINDOWS:
            nats = NatsLoadConfig(
                port=config.nats_port,
                partition=partition,
                subject=config.subject_of(partition),
                window=window,
                records_per_s=config.records_per_s,
            )
            maker, seed = self._maker(f"nats{partition}w{window}", partition)
            made.append(NatsLoad(nats, maker, self._recorder, seed=seed))
        flight = FlightLoadConfig(
            url=config.url,
            stream=config.stream,
            partition=partition,
            batches_per_s=_BATCHES_PER_S,
            batch_records_max=_BATCH_RECORDS_MAX,
            login=config.login,
        )
        maker, seed = self._maker(f"flight{partition}w0", partition)
        made.append(FlightLoad(flight, maker, self._recorder, seed=seed))
        lift = LiftLoadConfig(
            addresses=config.liftbridge,
            stream=config.stream,
            partition=partition,
            records_per_s=_LIFT_RECORDS_PER_S,
            login=config.login,
        )
        maker, seed = self._maker(f"liftbridge{partition}", partition)
        made.append(LiftLoad(lift, maker, self._recorder, seed=seed))
        return made

    def _maker(self, name: str, partition: int) -> tuple[RecordMaker, str]:
        seed = f"{self._config.seed}/{name}"
        subject = self._config.subject_of(partition)
        return RecordMaker(name, subject, seed=seed, large_bytes_max=_LARGE_BYTES_MAX), seed

    def _all(self) -> list[Publisher | FollowLoad | LiftFollow | GroupLoad]:
        return [*self._publishers, *self._followers, *self._subscribers, *self._groups]

    # ------------------------------------------------------------------ while stories are told

    def start(self) -> None:
        """Let all of them begin."""
        for one in self._all():
            one.start()

    def stop(self) -> None:
        """End all of them; a second call does nothing. Blocks."""
        for one in self._all():
            one.stop()
        self._publishers.clear()
        self._followers.clear()
        self._subscribers.clear()

    def complain(self) -> None:
        """Raise ChaosError if one of them has failed."""
        for one in self._all():
            if one.failure is not None:
                raise ChaosError(one.failure)

    def allow_gaps(self) -> None:
        """Let producers go on though the log misses records of theirs: an operator chose that."""
        for one in self._publishers:
            if isinstance(one, FlightLoad):
                one.allow_gap()

    # ------------------------------------------------------------------ the end

    def drain(self, patience_s: float) -> None:
        """Publish nothing new, and wait until everything is answered. Blocks."""
        for one in self._publishers:
            one.pause()
        deadline_s = time.monotonic() + patience_s
        while left := sum(one.unanswered for one in self._publishers):
            self.complain()
            if time.monotonic() > deadline_s:
                raise ChaosError(f"{left} unanswered {patience_s:.0f} s after all was healed")
            time.sleep(0.05)

    def read_to(self, ends: Mapping[int, int], patience_s: float) -> None:
        """Wait until every reader and group has come to the ends. Blocks."""
        for number, follower in enumerate(self._followers):
            if not follower.wait_for(ends[number], patience_s):
                raise ChaosError(f"{follower.name} is at {follower.position} of {ends[number]}")
            self._recorder.follow_to_the_end(follower.name, number)
        for number, subscriber in zip(_LIFT_SUBSCRIBED, self._subscribers, strict=True):
            if not subscriber.wait_for(ends[number], patience_s):
                self.complain()
                raise ChaosError(f"{subscriber.name} is at {subscriber.position} of {ends[number]}")
        for group in self._groups:
            if not group.wait_for(ends, patience_s):
                self.complain()
                raise ChaosError(f"group {group.name} is at {group.positions()} of {dict(ends)}")

    def tell(self, client: Client) -> None:
        """Tell the recorder what subscribers saw, after all load."""
        for subscriber in self._subscribers:
            subscriber.tell(client, self._recorder)

    def judge_groups(
        self, ends: Mapping[int, int], given_up: Sequence[GivenUp]
    ) -> list[GroupVerdict]:
        """Return what became of the groups; call it after :meth:`stop`."""
        self.complain()  # a member that did not end well
        return [group.judge(ends, given_up) for group in self._groups]
