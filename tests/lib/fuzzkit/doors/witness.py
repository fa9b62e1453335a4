"""A well-behaved client in a process of its own: publishes with acks, reads, and notes how long.

``python witness.py URL STREAM FILE`` runs until SIGTERM. Each line of the file is one call: when it
ended (Unix seconds), which call, its milliseconds, and the number of the record or the offset.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Final, TextIO

ROOT = Path(__file__).resolve().parents[4]

_PAUSE_S: Final = 0.02
_READ_EVERY: Final = 2  # the 99th of 180 reads was 7 ms in one run, 30 in another
_RECORD_BYTES: Final = 200


def main(url: str, stream: str, file: str) -> None:
    """Publish and read until SIGTERM; an error ends the process with a traceback."""
    from headwater.client import Client

    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    with (
        Client(url) as client,
        client.producer(stream) as producer,
        Path(file).open("w", encoding="ascii") as out,
    ):
        number, newest = 0, 0
        while not ended:
            began_s = time.monotonic()
            newest = producer.send([value_of(number)]).result(60).base_offset
            _note(out, "publish", began_s, number)
            number += 1
            if number % _READ_EVERY == 0:
                began_s = time.monotonic()
                found = sum(one.batch.num_rows for one in client.fetch(stream, start=newest))
                assert found == 1, f"{found} records from offset {newest} on, not 1"
                _note(out, "read", began_s, newest)
            time.sleep(_PAUSE_S)


def value_of(number: int) -> bytes:
    """Return the record of this number."""
    return f"{number:012d}".encode().ljust(_RECORD_BYTES, b".")


def _note(out: TextIO, call: str, began_s: float, number: int) -> None:
    took_ms = (time.monotonic() - began_s) * 1000
    out.write(json.dumps([time.time(), call, round(took_ms, 3), number]) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(*sys.argv[1:])
