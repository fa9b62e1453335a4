"""Runs one input through a decoder, and says what is wrong with what happened.

An input is a *finding* if the decoder raises what is not one of its errors, takes memory out of all
proportion, or takes time out of all proportion. Time is CPU time of this thread, and a slow input
counts only if it is slow three times: the machine has other work.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzzkit.decoder import Decoder

_BASE_S: Final = 0.1
_S_PER_KIB: Final = 0.004
_GROWTH_BYTES_MAX: Final = 64 * 1024 * 1024
_GROWTH_PER_BYTE: Final = 64
_TRIES: Final = 3
_PEAK_FILE: Final = Path("/proc/self/clear_refs")
_STATUS_FILE: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an input did to a decoder."""

    decoder: str
    what: str  # the same for inputs that find the same
    data: bytes
    trace: str = ""


def forget_peak() -> None:
    """Let the kernel measure the peak of this process's memory anew."""
    _PEAK_FILE.write_text("5")


def judged(decoder: Decoder, data: bytes, *, measures: bool) -> Finding | None:
    """Run one input; ``measures`` judges time and memory, too."""
    peak = _peak_bytes() if measures else 0
    began_s = time.thread_time()
    try:
        decoder.accepts(data)
    except Exception as error:  # noqa: BLE001 - any error at all is what is looked for
        return Finding(decoder.name, _told(error), data, traceback.format_exc(limit=-6))
    if not measures:
        return None
    took_s = time.thread_time() - began_s
    grown = _peak_bytes() - peak
    if grown > _GROWTH_BYTES_MAX + _GROWTH_PER_BYTE * len(data):
        return Finding(decoder.name, f"takes {grown >> 20} MiB", data)
    allowed_s = _BASE_S + _S_PER_KIB * len(data) / 1024
    if took_s > allowed_s and all(_seconds(decoder, data) > allowed_s for _ in range(_TRIES - 1)):
        return Finding(decoder.name, "is slow", data, f"{took_s:.2f} s for {len(data)} bytes")
    return None


def shrunk(decoder: Decoder, found: Finding, *, tries: int = 2000) -> Finding:
    """Return a shorter input with the same finding: parts are left out as long as it stays."""
    size = len(found.data) // 2
    while size and tries > 0:
        for at in range(0, len(found.data), size):
            tries -= 1
            shorter = judged(
                decoder, found.data[:at] + found.data[at + size :], measures=not found.trace
            )
            if shorter is not None and shorter.what == found.what:
                found = shorter
                break
        else:
            size //= 2
    return found


def _seconds(decoder: Decoder, data: bytes) -> float:
    began_s = time.thread_time()
    decoder.accepts(data)
    return time.thread_time() - began_s


def _peak_bytes() -> int:
    """Return the peak since :func:`forget_peak`; that of `getrusage` is older than this program."""
    (line,) = (one for one in _STATUS_FILE.read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _told(error: Exception) -> str:
    """Return the class of an error and the line of the product that raised it."""
    frames = [
        one for one in traceback.extract_tb(error.__traceback__) if "/tests/" not in one.filename
    ]
    place = (
        f" at {'/'.join(frames[-1].filename.split('/')[-3:])}:{frames[-1].lineno}" if frames else ""
    )
    return f"{type(error).__name__}{place}"
