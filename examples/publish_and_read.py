"""Publish records and read them back: the shortest program that does something useful.

Needs a server: ``headwater up`` in another terminal. HEADWATER_SERVER says where, if it is not this
machine's port 7410.

Prints::

    stored at offsets 0 to 2, on disk
    0 None b'one'
    1 None b'two'
    2 b'customer-7' b'three'
"""

import headwater

STREAM = "example_orders"


def main() -> None:
    """Create a stream, publish three records to it, read them."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)

        with client.producer(STREAM) as producer:
            # One batch. The future has its offsets once every record of it is on disk.
            future = producer.send([b"one", b"two", {"key": b"customer-7", "value": b"three"}])
            stored = future.result()
        last = stored.base_offset + stored.records_count - 1
        print(f"stored at offsets {stored.base_offset} to {last}, on disk")

        with client.fetch(STREAM, start="earliest") as fetched:
            for one in fetched:  # an Arrow batch of many rows each
                for row in one.batch.to_pylist():
                    print(row["offset"], row["key"], row["value"])


if __name__ == "__main__":
    main()
