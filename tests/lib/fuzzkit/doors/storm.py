"""Strangers at every door of a real broker for some minutes, and what others saw of it."""

from __future__ import annotations

import os
import random
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.errors import HeadwaterError
from fuzzkit.doors.stage import (
    ATTACKED,
    Busy,
    Call,
    Doors,
    Memory,
    Witness,
    create_attacked,
    errors_in,
    staged,
    wait_ready,
)
from fuzzkit.doors.strangers import ATTACKS, STORIES, attack

RESIDENT_BYTES_MAX: Final = 350 * 1024 * 1024
RATIO_MAX: Final = 5.0
CALM_BUSY_MAX: Final = 0.5  # beyond it the machine has other work, and times say nothing
_CALM_S: Final = 90.0  # 1,700 reads: the 99th of 800 was 6 ms in one run and 12 in another
_STORY_S: Final = 5.0
_STRANGERS: Final = 8
_FILES_WANTED: Final = 12_000  # ours: the strangers hold 10,000 connections
_P: Final = 0.99
_READY_S: Final = 60.0
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_MODEST: Final = "19"  # the niceness that leaves most to others
_CGROUPS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))  # of version 1, of version 2


@dataclass
class Outcome:
    """What a storm did."""

    seed: int
    attacks: Counter[str] = field(default_factory=Counter)
    stories: list[str] = field(default_factory=list)
    most_bytes: int = 0
    acked_count: int = 0
    p99_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # by call: calm, storm
    busy: tuple[float, float] = (0.0, 0.0)  # share of the processors' time: calm, storm
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what another machine might judge otherwise


def storm(
    seed: int,
    seconds: float,
    tell: Callable[[str], None],
    *,
    guarded: bool = False,
    calm_s: float = _CALM_S,
) -> Outcome:
    """Let strangers loose for some seconds; ``tell`` gets lines for people.

    The doors of a guarded broker ask for TLS, certificates and proofs.
    """
    outcome = Outcome(seed)
    allow_files()
    with tempfile.TemporaryDirectory(prefix="headwater-fuzz-") as name:
        folder = Path(name)
        with staged(folder, guarded=guarded) as doors, Memory(doors.broker) as memory:
            witness = Witness(doors, folder)
            calm = Busy()
            time.sleep(calm_s)
            began_s, calm_share, stormy = time.time(), calm.share(), Busy()
            _attacked(doors, seed, seconds, outcome, tell)
            ended_s, outcome.busy = time.time(), (calm_share, stormy.share())
            _judge(doors, witness, (began_s, ended_s), outcome)
            outcome.most_bytes = memory.most_bytes
        if outcome.most_bytes > RESIDENT_BYTES_MAX:
            outcome.findings.append(f"the broker took {outcome.most_bytes >> 20} MiB")
    return outcome


def allow_files() -> None:
    """Let this process hold the connections of all strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _attacked(
    doors: Doors, seed: int, seconds: float, outcome: Outcome, tell: Callable[[str], None]
) -> None:
    over, lock = threading.Event(), threading.Lock()

    def run(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        while not over.is_set():
            one = draw.choice(ATTACKS)
            attack(doors, one, draw)
            with lock:
                outcome.attacks[one.__name__] += 1

    threads = [threading.Thread(target=run, args=(one,)) for one in range(_STRANGERS)]
    until_s = time.monotonic() + seconds
    with _modest():
        for one in threads:
            one.start()
        try:
            _tell_stories(doors, until_s, outcome, tell)
            _tidy_up(doors)
        finally:
            over.set()
            for one in threads:
                one.join()


def _tell_stories(
    doors: Doors, until_s: float, outcome: Outcome, tell: Callable[[str], None]
) -> None:
    while time.monotonic() < until_s and doors.broker.exit_code is None:
        for story in STORIES:
            if time.monotonic() < until_s:
                _restore(doors)
                done = f"{story.__name__}: {story(doors, _STORY_S)}"
                outcome.stories.append(done)
                tell(
                    f"  {done}; {outcome.attacks.total():,} attacks, "
                    f"{doors.broker.resident_bytes() >> 20} MiB"
                )


@contextmanager
def _modest() -> Iterator[None]:
    """Leave the processors to other sessions until the end of the block, as far as they want them.

    The strangers are thought to have machines of their own. Linux shares the processors among
    sessions first (sched_autogroup), so the niceness of a thread has no effect beyond its session.
    A control group that is idle gives its processor back at once; a modest session has its turn
    first, of some milliseconds.
    """
    os.nice(5)
    before, group = None, _idle_group()
    with suppress(OSError):  # not every system has it
        found = _AUTOGROUP.read_text().split()[-1]
        _AUTOGROUP.write_text(_MODEST)
        before = found
    try:
        yield
    finally:
        if before is not None:
            _AUTOGROUP.write_text(before)
        if group is not None:
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))
            with suppress(OSError):  # some thread is not out yet
                group.rmdir()


def _idle_group() -> Path | None:
    """Put this process into an idle control group of its own, if the system lets it."""
    process = str(os.getpid())
    for parent in _CGROUPS:
        group = parent / f"headwater-strangers-{process}"
        try:
            if process not in (parent / "cgroup.procs").read_text().split():
                continue
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "cpu.idle").write_text("1")
            (group / "cgroup.procs").write_text(process)
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def _tidy_up(doors: Doors) -> None:
    """Let the attacked stream be as it was: some attacks delete it, or make it read-only."""
    with suppress(HeadwaterError), doors.client() as client:
        client.delete_stream(ATTACKED)
    _restore(doors)


def _restore(doors: Doors) -> None:
    """Create the attacked stream again, because some attacks delete it; others go on meanwhile."""
    with suppress(HeadwaterError):
        create_attacked(doors)


def _judge(doors: Doors, witness: Witness, storm_s: tuple[float, float], outcome: Outcome) -> None:
    try:
        calls = witness.stop()
        outcome.acked_count = witness.require_stored(calls)
    except (AssertionError, HeadwaterError) as failed:
        outcome.findings.append(str(failed))
        calls = []
    if doors.broker.exit_code is not None:
        outcome.findings.append(f"the broker ended with {doors.broker.exit_code}")
    elif not _becomes_ready(doors):
        outcome.findings.append("the broker is not ready")
    elif not doors.liftbridge_answers():
        outcome.findings.append("Liftbridge's API does not answer")
    outcome.findings += [f"in the log: {one[:2000]}" for one in errors_in(doors.broker.log_path)]
    for call in ("publish", "read"):
        calm, stormy = p99_ms(calls, call, (0, storm_s[0])), p99_ms(calls, call, storm_s)
        outcome.p99_ms[call] = calm, stormy
        told = f"p99 of {call}: {stormy:.1f} ms, {stormy / max(calm, 0.001):.1f} times calm"
        if outcome.busy[0] > CALM_BUSY_MAX:
            outcome.notes.append(told)  # a low ratio says as little as a high one
        elif stormy > RATIO_MAX * calm:
            outcome.findings.append(told)


def _becomes_ready(doors: Doors) -> bool:
    try:
        wait_ready(doors, _READY_S)
    except AssertionError:
        return False
    return True


def p99_ms(calls: Sequence[Call], call: str, between_s: tuple[float, float]) -> float:
    """Return the time that 99 of 100 calls of this name took at most; 0 without a call."""
    took = sorted(
        one.took_ms
        for one in calls
        if one.call == call and between_s[0] <= one.ended_s < between_s[1]
    )
    return took[int(len(took) * _P)] if took else 0.0
