"""Measures how long a fault prevents publishing: runs a probe and evaluates its output.

A probe is a program that publishes one record at a time. For each record it prints ``SENT ACKED``,
the times of sending and acknowledgement in nanoseconds of CLOCK_MONOTONIC, which all processes of a
machine share.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.processes import BenchError, with_shim

SLOT_S: Final = 0.1  # of a timeline

Ack = tuple[int, int]  # when a record was sent and when it was acknowledged

_LATE_NS: Final = 20_000_000
_WARM_ACKS: Final = 20


def parse_ack(line: str) -> Ack | None:
    """Parse a line of a probe; None for any other line."""
    words = line.split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    sent_ns, acked_ns = int(words[0]), int(words[1])
    return (sent_ns, acked_ns) if sent_ns <= acked_ns else None


def first_after(acks: Sequence[Ack], fault_ns: int) -> Ack | None:
    """Return the first acknowledgement which shows that publishing works again after the fault.

    Usually this is the acknowledgement of a record that was sent after the fault. A record that
    was sent before counts only if its acknowledgement arrived so late that it cannot have been on
    its way at the time of the fault.
    """
    for sent_ns, acked_ns in acks:
        if acked_ns > fault_ns and (sent_ns >= fault_ns or acked_ns - fault_ns > _LATE_NS):
            return sent_ns, acked_ns
    return None


def by_slot(acks: Sequence[Ack], fault_ns: int, *, before_s: float, after_s: float) -> list[int]:
    """Count acknowledgements in slots of SLOT_S from ``before_s`` before until after the fault."""
    counts = [0] * round((before_s + after_s) / SLOT_S)
    for _, acked_ns in acks:
        slot = math.floor(((acked_ns - fault_ns) / 1e9 + before_s) / SLOT_S)
        if 0 <= slot < len(counts):
            counts[slot] += 1
    return counts


class Probe:
    """A running probe. A context manager that ends the probe."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start the probe; its stderr goes to ``log``."""
        self._log = log
        self._acks: list[Ack] = []
        self._changed = threading.Condition()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                with_shim(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, name="probe", daemon=True)
        self._reader.start()

    def warm_up(self, *, timeout_s: float = 60.0) -> None:
        """Wait for more acknowledgements, which show that the probe has found the new leader."""
        with self._changed:
            wanted = len(self._acks) + _WARM_ACKS
            if not self._changed.wait_for(lambda: len(self._acks) >= wanted, timeout_s):
                raise BenchError(
                    f"the probe got no acknowledgements within {timeout_s:g} s: {self._tail()}"
                )

    def seconds_after(self, fault_ns: int, *, timeout_s: float = 120.0) -> float:
        """Return the seconds from a fault to the next acknowledged publish."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                found = first_after(self._acks[seen:], fault_ns)
                if found is not None:
                    return (found[1] - fault_ns) / 1e9
                seen = len(self._acks)
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise BenchError(
                        f"no publish was acknowledged within {timeout_s:g} s after the fault: "
                        f"{self._tail()}"
                    )

    def go_on_until(self, at_ns: int) -> None:
        """Wait for an acknowledgement after a point in time: everything before it is known then."""
        wait_s = max(0.0, at_ns / 1e9 - time.monotonic())
        self.seconds_after(at_ns, timeout_s=wait_s + 120.0)

    def acks_by_slot(self, fault_ns: int, *, before_s: float, after_s: float) -> list[int]:
        """Count acknowledgements in slots of SLOT_S seconds around a fault, the oldest first."""
        with self._changed:
            return by_slot(self._acks, fault_ns, before_s=before_s, after_s=after_s)

    def stop(self) -> None:
        """Kill the probe."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                ack = parse_ack(line)
                if ack is not None:
                    with self._changed:
                        self._acks.append(ack)
                        self._changed.notify_all()

    def _tail(self) -> str:
        return self._log.read_bytes()[-800:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
