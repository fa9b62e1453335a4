"""A consumer group: two members share the partitions of a stream; one leaves, the other goes on.

Each member's records are those of its partitions. What a member has processed is committed before
its partition goes over, so the next one begins right behind it.

Needs a server: ``headwater up`` in another terminal.

Prints::

    two members: 8 records, each once
    one member: 4 more
    lag: 0
"""

import threading

import headwater

STREAM = "example_orders"
GROUP = "example_billing"


def publish(client: headwater.Client, values: list[str]) -> None:
    """Publish each value with itself as the key: keys choose among the partitions."""
    with client.partitioned_producer(STREAM) as producer:
        producer.send([{"key": one, "value": one} for one in values]).result()


def read(client: headwater.Client, seen: list[str]) -> None:
    """Be a member until eight records were read by both."""
    with client.consumer(STREAM, group=GROUP) as consumer:
        while len(seen) < 8:
            batch = consumer.poll(0.2)
            if batch is not None:
                seen.extend(value.decode() for value in batch.rows.column("value").to_pylist())


def main() -> None:
    """Share, leave, go on."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM, partitions=2)
        publish(client, [f"order-{number}" for number in range(8)])

        seen: list[str] = []
        members = [threading.Thread(target=read, args=(client, seen)) for _ in range(2)]
        for member in members:
            member.start()
        for member in members:
            member.join()
        assert len(set(seen)) == 8
        print(f"two members: {len(set(seen))} records, each once")

        publish(client, [f"order-{number}" for number in range(8, 12)])
        with client.consumer(STREAM, group=GROUP) as consumer:
            late = []
            for record in consumer:
                late.append(record.value)
                if len(late) == 4:
                    break
            print(f"one member: {len(late)} more")
            consumer.commit()
            print(f"lag: {sum(consumer.lag().values())}")


if __name__ == "__main__":
    main()
