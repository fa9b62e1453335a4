"""One process of a simulated broker: its clock, its lives, the drivers of pumps and turns.

Whatever a process plans is forgotten with its life, and waits while it is stopped.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import Any, Final

from broker.ports.pumps import NEVER_MS, Drive, Driven, PumpTurn
from broker.runtime.partition.commit_scheduler import Turn
from simkit.disk.disk import PowerLostError, SimDisk
from simkit.network.world import World

WALL_US: Final = 1_700_000_000_000_000  # when every world begins


class Machine:
    """A machine with a disk and a clock, and at most one process at a time."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.disk = SimDisk(world.rng)
        self.life = 0
        self.alive = self.paused = False
        self.fails_by_power = False  # what ends the process in the middle of an operation
        self.start_again: Callable[[], None] = lambda: None  # as a process manager would
        self.on_end: list[Callable[[str], None]] = []  # hear that a process is about to end
        self._rate = 1.0
        self._clock_set_ms = 0
        self._clock_base = world.rng.randrange(1_000_000)
        # How each is to be run, what, and with which arguments.
        self._late: list[tuple[Callable[..., None], Callable[..., None], tuple[Any, ...]]] = []
        self._waits = False  # for the metadata; see `wait`

    # ------------------------------------------------------------------ the clock

    def monotonic_ms(self) -> int:
        """See ``Clock``: this machine's clock, which runs faster or slower than other clocks."""
        return int(self._clock_base + (self.world.now_ms - self._clock_set_ms) * self._rate)

    def now_us(self) -> int:
        """See ``Clock``."""
        return WALL_US + self.world.now_ms * 1000

    def set_rate(self, rate: float) -> None:
        """Let the clock go faster or slower from now on."""
        self._clock_base, self._clock_set_ms = self.monotonic_ms(), self.world.now_ms
        self._rate = rate

    def delay_until(self, at_ms: int) -> int:
        """Return how long it is until this clock shows ``at_ms``."""
        return max(0, math.ceil((at_ms - self.monotonic_ms()) / self._rate))

    # ------------------------------------------------------------------ lives

    @property
    def process(self) -> str:
        """The name of the present process."""
        return f"{self.name}.{self.life}"

    def begin_life(self) -> None:
        """Start a process."""
        assert not self.alive
        self.life += 1
        self.alive = True

    def end_life(self, *, power: bool) -> None:
        """End the process as SIGKILL does, or with the machine's power."""
        for hear in self.on_end:
            hear(self.name)
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        self.alive = self.paused = self._waits = False
        self._late.clear()
        self.life += 1

    def pause(self) -> None:
        """Stop the process; its clock goes on."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on with everything that has piled up."""
        self.paused = False
        late, self._late, life = self._late, [], self.life
        for run, action, args in late:
            run(life, action, *args)  # unless an earlier one has ended this life

    def later(self, delay_ms: int, action: Callable[..., None], *args: Any) -> None:
        """Plan something that ends with the present process."""
        self.world.at(delay_ms, self.run, self.life, action, *args)

    def run(self, life: int, action: Callable[..., None], *args: Any) -> None:
        """Let something happen in a life, unless that is over."""
        if life != self.life or not self.alive:
            return
        if self.paused or self._waits:
            self._late.append((self.run, action, args))
        else:
            self._do(life, action, *args)

    def run_beneath(self, life: int, action: Callable[..., None], *args: Any) -> None:
        """Let something happen that goes on while the rest of the process waits: see `wait`."""
        if life != self.life or not self.alive:
            return
        if self.paused:
            self._late.append((self.run_beneath, action, args))
        else:
            self._do(life, action, *args)

    def wait(self, done: Callable[[], bool]) -> None:
        """Let a blocking call wait; meanwhile only the pumps beneath run in this process."""
        life, self._waits = self.life, True
        while life == self.life and (self.paused or not done()):
            assert self.world.step(), "nothing is left to happen"
        if life != self.life:
            raise PowerLostError("the process ended while it waited")
        self._waits = False
        self.world.at(0, self._catch_up, life)

    def _catch_up(self, life: int) -> None:
        if life == self.life and not self.paused and not self._waits:
            self.resume()

    def _do(self, life: int, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except PowerLostError:
            if life == self.life:
                self.world.note("ended in the middle of an operation", self.name)
                self.end_life(power=self.fails_by_power)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if life == self.life:
                self.world.note("ended by a failing disk", self.name)
                self.end_life(power=False)
                self.world.at(300, self.start_again)


class WorldTurns:
    """A ``TurnScheduler`` whose turns are events of the world."""

    def __init__(self, machine: Machine, delay_ms_max: int) -> None:
        self._machine = machine
        self._delay_ms_max = delay_ms_max
        self.on_crash = crashed

    def schedule(self, turn: Turn) -> None:
        """See ``TurnScheduler``: a turn comes soon, and others may come before it."""
        delay_ms = self._machine.world.rng.randint(0, self._delay_ms_max)
        self._machine.later(delay_ms, turn.run_turn)

    def run_here(self, turn: Turn) -> None:
        """See ``TurnScheduler``."""
        turn.run_turn()


class WorldDriven:
    """A pump whose turns are events of the world."""

    def __init__(
        self, machine: Machine, turn: PumpTurn, pace_ms_max: int, *, beneath: bool = False
    ) -> None:
        self._machine = machine
        self._beneath = beneath
        self._turn = turn
        self._pace_ms_max = pace_ms_max
        self._started = False
        self._planned_ms = NEVER_MS  # by the world's clock
        self._number = 0  # of the plan that counts

    def start(self) -> None:
        """See ``Driven``."""
        self._started = True
        self._plan(0)

    def wake(self) -> None:
        """See ``Driven``."""
        if self._started:
            self._plan(self._machine.world.rng.randint(0, 2))

    def stop(self, timeout_s: float | None = None) -> None:
        """See ``Driven``."""
        self._started = False

    def _plan(self, delay_ms: int) -> None:
        at_ms = self._machine.world.now_ms + delay_ms
        if at_ms < self._planned_ms:
            self._planned_ms = at_ms
            self._number += 1
            run = self._machine.run_beneath if self._beneath else self._machine.run
            self._machine.world.at(delay_ms, run, self._machine.life, self._take, self._number)

    def _take(self, number: int) -> None:
        if number != self._number or not self._started:
            return  # there was an earlier one
        self._planned_ms = NEVER_MS
        next_ms = self._turn(self._machine.monotonic_ms())
        if next_ms < NEVER_MS:
            pace_ms = self._machine.world.rng.randint(0, self._pace_ms_max)
            self._plan(max(pace_ms, self._machine.delay_until(next_ms)))


def drive_of(machine: Machine, *, pace_ms_max: int = 0, beneath: bool = False) -> Drive:
    """Return what lets a machine's world drive pumps; a turn may take so long.

    What is ``beneath`` goes on while other pumps wait for it.
    """

    def drive(name: str, turn: PumpTurn) -> Driven:
        return WorldDriven(machine, turn, pace_ms_max, beneath=beneath)

    return drive


def crashed(crash: BaseException, /) -> None:
    """Hear of a bug in the product: the seed has found it."""
    raise crash
