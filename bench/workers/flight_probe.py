"""Publishes one record at a time until it is killed: ``bench.workers.flight_probe URL STREAM``.

Prints a line for every acknowledged record, with the times of sending and of the acknowledgement in
nanoseconds of the monotonic clock. The client is the product's own, with its own retries.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from bench import payloads
from broker.errors import HeadwaterError
from headwater.client import Client

_SIZE: Final = 100
_PAUSE_S: Final = 0.005
_PATIENCE_S: Final = 60.0


def main(arguments: list[str]) -> int:
    """Publish for ever."""
    url, stream = arguments
    one = payloads.batch_of(_SIZE, 1)
    client = Client(url)
    producer = client.producer(stream, window_batches=1)
    while True:
        sent_ns = time.monotonic_ns()
        try:
            producer.send(one).result(_PATIENCE_S)
        except (HeadwaterError, TimeoutError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            producer = client.producer(stream, window_batches=1)
            continue
        print(sent_ns, time.monotonic_ns(), flush=True)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
