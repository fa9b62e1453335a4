"""Follow a stream: first what it holds, then each record as it is committed.

A subscriber stores one number for each partition, the next offset, and continues from there. With
several brokers, the read moves to another broker by itself if one fails.

Needs a server: ``headwater up`` in another terminal.

Prints::

    history: 21.5
    live: 22.0
    live: 22.5
    live: 23.0
    next offset: 4
"""

import threading

import headwater

STREAM = "example_temperatures"
HISTORY = ["21.5"]
LIVE = ["22.0", "22.5", "23.0"]


def publish(values: list[str]) -> None:
    """Publish each value as a batch of its own."""
    with headwater.Client() as client, client.producer(STREAM) as producer:
        for value in values:
            producer.send([value]).result()


def main() -> None:
    """Read the history, then three live records that another thread publishes."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)
        publish(HISTORY)

        with client.fetch(STREAM, start="earliest", follow=True) as following:
            publisher: threading.Thread | None = None
            for one in following:
                for row in one.batch.to_pylist():
                    kind = "history" if row["offset"] < len(HISTORY) else "live"
                    print(f"{kind}: {row['value'].decode()}")
                if publisher is None:  # somebody publishes while we wait
                    publisher = threading.Thread(target=publish, args=(LIVE,))
                    publisher.start()
                if one.end_offset == len(HISTORY) + len(LIVE):
                    break
            print(f"next offset: {following.position}")  # keep it: the next run starts there
        if publisher is not None:
            publisher.join()


if __name__ == "__main__":
    main()
