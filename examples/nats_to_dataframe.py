"""From any NATS client to an exact DataFrame, with its certificate.

The publisher knows NATS only. Each message has a reply subject, so it is answered (JetStream's
PubAck) once its record is on disk, and a message id, so that a repeated one is stored once. Spark
then reads the table and what is not in it yet as one DataFrame.

Needs ``headwater up`` in another terminal, the extra ``demo`` (or ``broker`` and ``spark``) and
Java 17. NATS_URL says where the NATS server is, if it is not this machine's port 4222.

Prints::

    the first message has sequence number 1
    the same message again: duplicate
    101 records, each once
    31 flights of UA
    certificate: 101 records, offsets 0 to 101, by counts
"""

import asyncio
import json
import os

import nats

import headwater

STREAM = "example_flights"
NATS_URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


async def publish(first: int, count: int) -> list[dict[str, object]]:
    """Publish numbered flights by plain NATS requests; return the answers."""
    connection = await nats.connect(NATS_URL)
    try:
        answers = []
        for number in range(first, first + count):
            carrier = "UA" if number % 10 < 3 else "DL"
            answer = await connection.request(
                STREAM,
                json.dumps({"flight": number, "carrier": carrier}).encode(),
                headers={"Nats-Msg-Id": f"flight-{number}"},
            )
            answers.append(json.loads(answer.data))
        return answers
    finally:
        await connection.close()


def main() -> None:
    """Publish by NATS, ship half of it into the table, read all of it with Spark."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM, puback=True)

        answers = asyncio.run(publish(0, 50))
        print(f"the first message has sequence number {answers[0]['seq']}")
        (again,) = asyncio.run(publish(0, 1))
        print(
            f"the same message again: {'duplicate' if again.get('duplicate') else 'stored twice'}"
        )
        client.tier_flush(STREAM)  # the first 50 are in the table, the others are not
        asyncio.run(publish(50, 51))

    spark = headwater.session("example")
    flights = headwater.read(spark, STREAM)
    print(f"{flights.count()} records, each once")
    united = flights.where("get_json_object(CAST(value AS STRING), '$.carrier') = 'UA'")
    print(f"{united.count()} flights of UA")
    proof = headwater.certificate(flights)
    (part,) = proof.partitions
    print(
        f"certificate: {proof.records_count} records, "
        f"offsets {part.start} to {part.end}, by {proof.form}"
    )
    headwater.release_all()  # the lease: what was read may now be deleted
    spark.stop()


if __name__ == "__main__":
    main()
