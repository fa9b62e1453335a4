"""One process of a simulated broker: its clock, its lives, and that it can be stopped for a while.

Whatever a process plans is forgotten with its life, and waits while it is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.errors import DiskFullError, LogFailedError, SegmentCorruptError
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from simkit.cluster.log import ReplicaLog
from simkit.network.world import World


class SimProcess:
    """The lives of one broker, one process at a time. What runs in them is the broker's."""

    def __init__(self, name: str, world: World, log: ReplicaLog) -> None:
        self.name = BrokerId(name)
        self.world = world
        self.log = log
        self.folder: list[str] = []  # sessions, durable
        self.unproved = False  # its disk is not what the metadata believes it to be
        self.lost_end = Offset(0)  # what its last disk had synced, until it is in sync again
        self.rotten = False  # a fault damaged it, and perhaps nobody has noticed yet
        self.forgot_life: int | None = None  # after which its disk forgot; until it is whole again
        self.clean_stop: str | None = None  # the session that ended politely; durable
        self._clean = False  # the process before this one did
        self.alive = False
        self.paused = False
        self._rate = 1.0
        self._clock_set_ms = 0
        self._clock_base = world.rng.randrange(1_000_000)
        self._life = 0
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def clock_ms(self) -> int:
        """Return this broker's monotonic clock."""
        return int(self._clock_base + (self.world.now_ms - self._clock_set_ms) * self._rate)

    def set_rate(self, rate: float) -> None:
        """Let the clock go faster or slower from now on."""
        self._clock_base, self._clock_set_ms = self.clock_ms(), self.world.now_ms
        self._rate = rate

    @property
    def session(self) -> str:
        """What names this process."""
        return f"{self.name}.{self._life}"

    def pause(self) -> None:
        """Stop the process; its clock goes on."""
        if self.alive:
            self.paused = True
            self.world.note("paused", self.name)

    def resume(self) -> None:
        """Let it go on with everything that has piled up."""
        if not self.paused:
            return
        self.paused = False
        self.world.note("resumed", self.name)
        late, self._late, life = self._late, [], self._life
        for action, args in late:
            self._run(life, action, *args)  # unless an earlier one has ended this life

    def _later(self, delay_ms: int, action: Callable[..., None], *args: Any) -> None:
        self.world.at(delay_ms, self._run, self._life, action, *args)

    def _run(self, life: int, action: Callable[..., None], *args: Any) -> None:
        if life != self._life:
            return
        if self.paused:
            self._late.append((action, args))
            return
        try:
            action(*args)
        except LogFailedError:
            self._fail()
        except DiskFullError:  # a turn that is refused; what waits for it is tried again
            self.world.note("turn refused: disk full")
        except SegmentCorruptError:
            self.found_rot()

    # ------------------------------------------------------------------ the disk

    def stop(self) -> None:
        """End the process politely: its log is synced and closed, and that is written down."""
        session, synced = self.session, self.alive and not self.paused
        try:
            self.log.sync()
        except LogFailedError:
            synced = False
        self.crash(power=False)
        if synced:
            self.clean_stop = session
            self.world.note("clean stop noted", self.name)

    def take_clean_stop(self) -> bool:
        """Tell whether the newest session ended politely; the note is gone from now on."""
        noted, self.clean_stop = self.clean_stop, None
        return noted is not None and self.folder[-1:] == [noted]

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.crash(power=True)
        self._lose_disk()
        self.rotten = False
        self.folder, self.clean_stop = [], None
        self.unproved = True
        self.world.note("wiped", self.name)

    def put_back(self, copy: Any, folder: list[str] | None) -> None:
        """Let the disk be as a copy says: of the replica, and with ``folder`` of the sessions too.

        Without a copy, the replica's own folder is lost, and nothing else.
        """
        self.crash(power=True)
        self.world.note("replica lost" if copy is None else "put back", self.name)
        self._lose_disk()
        if copy is not None:
            self.log.put_back(copy)
        if folder is not None:
            self.folder = list(folder)
        self.clean_stop = None  # the copy was taken while the process ran
        self.rotten = False
        self.forgot_life = self._life

    def _lose_disk(self) -> None:
        self.lost_end = max(self.lost_end, self.log.facts().synced_end)
        self.log.wipe()

    def crash(self, *, power: bool) -> None:
        """End the process, if any."""
        raise NotImplementedError

    def _fail(self) -> None:
        raise NotImplementedError

    def found_rot(self) -> None:
        """Hear that a read met damage."""
        raise NotImplementedError
