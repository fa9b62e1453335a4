"""Send again after a crash without storing anything twice.

A producer sends again by itself for ``retry_ms_max``, and the broker knows a batch by the
producer's id and sequence number. A program that stores both can do the same after its own crash:
it sends every batch without an answer again, under the same numbers. Here the "crash" is a second
producer.

A partition remembers the producers that wrote last: tens of thousands of them. A program that comes
back after so many others is forgotten: its first batch (number 0) would be stored again, and later
ones are refused with ``SequenceGapError``. So send again soon after a crash.

Needs a server: ``headwater up`` in another terminal.

Prints::

    first run: 2 batches, offsets [0, 3]
    second run: batch at 3 was there already: True
    second run: batch at 6 was there already: False
    in the stream: ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']
"""

import headwater
from broker.model.ids import ProducerId

STREAM = "example_payments"
PRODUCER = ProducerId(20_261_123)  # chosen once for this program, and kept with its progress
BATCHES = [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]]


def main() -> None:
    """Send two batches, forget the second answer, send it again with one more."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)

        # A sequence number counts records: the batch that starts with record n has number n.
        with client.producer(STREAM, producer_id=PRODUCER, retry_ms_max=10_000) as producer:
            futures = [producer.send(batch) for batch in BATCHES[:2]]
            offsets = [future.result().base_offset for future in futures]
        print(f"first run: {len(offsets)} batches, offsets {offsets}")

        # Suppose that the second batch's answer was lost: send the batch again, as sequence 3.
        with client.producer(STREAM, producer_id=PRODUCER, sequence=3) as producer:
            for future in [producer.send(batch) for batch in BATCHES[1:]]:
                stored = future.result()
                place = f"batch at {stored.base_offset}"
                print(f"second run: {place} was there already: {stored.duplicate}")

        with client.fetch(STREAM) as fetched:
            values = [value.decode() for one in fetched for value in one.batch["value"].to_pylist()]
        print(f"in the stream: {values}")


if __name__ == "__main__":
    main()
