"""A consumer group: processes that join, are killed, frozen and told to leave, by a seed.

Some of them have a name of their own and come back under it. What each was given and has committed
is in its notes; :meth:`GroupLoad.judge` lets checkkit's judge of groups look at all of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import HeadwaterError
from chaoskit.actors import member
from chaoskit.actors.notes import SUFFIX, read_notes
from chaoskit.actors.task import Kind, MemberTask
from checkkit.check_groups import GivenUp, GroupAnomaly, GroupViolation, judge_group
from clusterkit.login import OPEN, Login
from freezing import freeze
from headwater.local.embedded import spawn

_MEMBERS: Final = (2, 4)  # at least, at most
_EVENTS_PER_S: Final = 0.12
_FROZEN_S: Final = (0.5, 8.0)  # below a session, and well above
_END_S: Final = 30.0
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoadConfig:
    """A group, and what it reads."""

    kind: Kind
    addresses: str  # as MemberTask has them
    url: str  # of Flight, for questions about the group
    stream: str
    folder: Path
    seed: str
    login: Login = OPEN

    @property
    def group(self) -> str:
        """Name of the group."""
        return f"chaos-{self.kind}"


@dataclass(slots=True)
class _Process:
    name: str
    member: str  # its own name in the group; "": it has none
    process: subprocess.Popen[bytes]
    thaws_s: float | None = None  # when it goes on


class GroupLoad:
    """One group; a thread lets things happen to its members."""

    def __init__(self, config: GroupLoadConfig) -> None:
        self._config = config
        self._random = random.Random(config.seed)
        self._processes: list[_Process] = []
        self._count = 0
        self._settling = threading.Event()
        self._ending = threading.Event()
        self.happened: Counter[str] = Counter()
        self.failure: str | None = None
        self._folder = config.folder / config.group
        self._folder.mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, name=config.group, daemon=True)

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._config.group

    def start(self) -> None:
        """Let the first members join, and begin."""
        self._thread.start()

    def stop(self) -> None:
        """End all members: they are asked to leave. Blocks."""
        self._ending.set()
        self._thread.join()

    # ------------------------------------------------------------------ what happens

    def _run(self) -> None:
        """Own the members from the first to the last: they die with the thread that starts them."""
        for _ in range(_MEMBERS[0]):
            self._join()
        next_s = time.monotonic() + self._random.expovariate(_EVENTS_PER_S)
        while not self._ending.wait(_LOOK_S):
            now_s = time.monotonic()
            self._thaw(now_s)
            self._look_for_failures()
            if self._settling.is_set():
                continue
            if now_s >= next_s:
                self._happen()
                next_s = now_s + self._random.expovariate(_EVENTS_PER_S)
        self._thaw(float("inf"))
        for one in self._processes:
            one.process.terminate()
        for one in self._processes:
            self._await_end(one)

    def _happen(self) -> None:
        awake = [one for one in self._processes if one.thaws_s is None]
        if len(self._processes) < _MEMBERS[0] or not awake:
            self._join()
            return
        what = self._random.choice([self._kill, self._freeze, self._freeze, self._leave])
        if len(self._processes) < _MEMBERS[1] and self._random.random() < 0.4:
            self._join()
        else:
            what(self._random.choice(awake))

    def _join(self, named: str | None = None) -> None:
        """Start a process; under the name of one that is gone, it has that one's partitions."""
        config, self._count = self._config, self._count + 1
        process = f"p{self._count}"
        if named is None:
            has_name = config.kind == "headwater" and self._random.random() < 0.4
            named = f"own-{process}" if has_name else ""
        task = MemberTask(
            kind=config.kind,
            addresses=config.addresses,
            stream=config.stream,
            group=config.group,
            process=process,
            member=named,
            commits_itself=self._random.random() < 0.5,
            notes=str(self._folder / f"{process}{SUFFIX}"),
            seed=f"{config.seed}/{process}",
            tls_ca_file=config.login.tls_ca_file,
            token_file=config.login.token_file,
        )
        command = [sys.executable, member.__file__, task.to_json()]
        started = spawn(command, self._folder / f"{process}.log")
        self._processes.append(_Process(process, named, started))
        self.happened["joined"] += 1

    def _kill(self, one: _Process) -> None:
        one.process.kill()
        one.process.wait()
        self._processes.remove(one)
        self.happened["killed"] += 1
        if one.member:
            self._join(one.member)

    def _leave(self, one: _Process) -> None:
        one.process.terminate()
        self._await_end(one)
        self._processes.remove(one)
        self.happened["left"] += 1

    def _freeze(self, one: _Process) -> None:
        freeze(one.process.pid)
        one.thaws_s = time.monotonic() + self._random.uniform(*_FROZEN_S)
        self.happened["frozen"] += 1

    def _thaw(self, now_s: float) -> None:
        for one in self._processes:
            if one.thaws_s is not None and now_s >= one.thaws_s:
                os.kill(one.process.pid, signal.SIGCONT)
                one.thaws_s = None

    def _await_end(self, one: _Process) -> None:
        """Wait for a process that was told to end."""
        try:
            code = one.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
            code = None
        if code not in {0, -signal.SIGTERM}:  # it may have been told before it could listen
            how = "did not end" if code is None else f"ended with {code}"
            self.failure = f"member {one.name} of {self.name} {how}: {self._last_words(one)}"

    def _look_for_failures(self) -> None:
        for one in list(self._processes):
            if one.process.poll() is not None:
                self._await_end(one)
                self._processes.remove(one)

    def _last_words(self, one: _Process) -> str:
        words = (self._folder / f"{one.name}.log").read_text(errors="replace").strip()
        return words.splitlines()[-1] if words else "it says nothing"

    # ------------------------------------------------------------------ the end

    def wait_for(self, ends: Mapping[int, int], timeout_s: float) -> bool:
        """Let nothing more happen; tell whether the group has committed up to these ends."""
        self._settling.set()
        deadline_s = time.monotonic() + timeout_s
        while not self._is_at(ends):
            if time.monotonic() > deadline_s or self.failure is not None:
                return False
            time.sleep(_LOOK_S)
        return True

    def positions(self) -> dict[int, int]:
        """Return the group's position in each partition of the stream."""
        with self._config.login.client(self._config.url) as client:
            told = client.describe_group(self.name).partitions
        return {one.partition: int(one.offset or 0) for one in told}

    def _is_at(self, ends: Mapping[int, int]) -> bool:
        with suppress(HeadwaterError):
            positions = self.positions()
            return all(positions.get(partition, 0) >= end for partition, end in ends.items())
        return False

    def judge(self, ends: Mapping[int, int], given_up: Sequence[GivenUp]) -> GroupVerdict:
        """Return what all members saw, and what is wrong with it; call it after :meth:`stop`."""
        history = read_notes(self._folder)
        history.given_up = list(given_up)
        named = {str(partition): end for partition, end in ends.items()}
        fenced = self._config.kind == "headwater"
        return GroupVerdict(
            group=self.name,
            happened=self.happened,
            given_count=sum(one.end - one.start for one in history.given),
            readings_count=len({(one.partition, one.epoch) for one in history.given}),
            commits_count=sum(one.confirmed_at is not None for one in history.commits),
            violations=judge_group(history, named, fenced=fenced),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """What became of a group."""

    group: str
    happened: Counter[str]
    given_count: int  # records, each time that one was given
    readings_count: int  # claims under which records were given
    commits_count: int  # that were confirmed
    violations: list[GroupViolation]

    def examples(self, of_a_kind_max: int = 5) -> list[str]:
        """Return the first violations of each kind, for people."""
        seen: Counter[GroupAnomaly] = Counter()
        told: list[str] = []
        for one in self.violations:
            seen[one.kind] += 1
            if seen[one.kind] <= of_a_kind_max:
                told.append(f"{one}, in {self.group}")
        return told

    def __str__(self) -> str:
        happened = ", ".join(f"{count} {what}" for what, count in sorted(self.happened.items()))
        return (
            f"{self.group}: members {happened}; {self.readings_count} claims read, "
            f"{self.given_count} records given, {self.commits_count} commits confirmed, "
            f"{len(self.violations)} violations"
        )
