"""Headwater from Spark, in one sitting: read, SQL, AS OF, latest, stream, write.

Run it as it is, cell by cell or whole; it makes streams of its own and deletes them at the end.
Where it runs is not its business:

    python docs/notebook.py                                      # Spark in this process
    SPARK_REMOTE=sc://127.0.0.1:15002 python docs/notebook.py    # Spark Connect
    PYTHONPATH=headwater.zip spark-submit --master spark://… $(headwater job submit-args) \
        --py-files headwater.zip docs/notebook.py                # a cluster

HEADWATER_SERVER says where the broker is. docs/spark.md explains each step.
"""

# %% A session, a client, and a stream with two partitions
import os
import tempfile

import headwater

spark = headwater.session("notebook")
client = headwater.Client()
flights, fares, copies = "notebook_flights", "notebook_fares", "notebook_copies"
for name in (flights, fares, copies):
    if name in [stream.name for stream in client.streams()]:
        client.delete_stream(name)  # of a run that did not come to its end
    client.create_stream(name, partitions=2)


def publish(stream: str, first: int, count: int) -> None:
    """Publish numbered records to both partitions; every aircraft has a key, every 50th leaves."""
    for partition in range(2):
        with client.producer(stream, partition) as producer:
            producer.send(
                [
                    {
                        "key": f"N{number % 20}".encode(),
                        "value": None if number % 50 == 49 else str(number).encode(),
                    }
                    for number in range(first, first + count)
                ]
            )


# %% Half of it in the table, half of it only in the log
publish(flights, 0, 600)
publish(fares, 0, 100)
client.tier_flush(flights)
publish(flights, 600, 400)

# %% Read everything: one DataFrame over both tiers, each record once, and the proof of it
rows = headwater.read(spark, flights)
assert rows.count() == 2000
assert headwater.certificate(rows).records_count == 2000
saved = headwater.cut_of(rows).save()
print(headwater.explain(rows, files_max=3))

# %% SQL: every stream is a table, and every statement sees it as of now
(answer,) = headwater.sql(
    spark,
    """
    SELECT count(*) AS records, count(DISTINCT key) AS aircraft,
           (SELECT count(*) FROM notebook_fares) AS fares
    FROM notebook_flights
    """,
).collect()
assert (answer.records, answer.aircraft, answer.fares) == (2000, 20, 200)
publish(fares, 100, 1)
(answer,) = headwater.sql(spark, "SELECT count(*) AS fares FROM notebook_fares").collect()
assert answer.fares == 202

# %% The same for spark.sql and tools that do not know us: views that stand still until moved up
headwater.register(spark, [flights, fares])
joined = spark.sql("SELECT * FROM notebook_flights JOIN notebook_fares USING (partition, offset)")
assert joined.count() == 202

# %% Or without any call of ours: streams are tables of a catalog, fresh in each statement
(answer,) = spark.sql("SELECT count(*) AS fares FROM headwater.notebook_fares").collect()
assert answer.fares == 202
past = spark.read.option("versionAsOf", saved).table("headwater.notebook_flights")
assert past.count() == 2000

# %% AS OF: offsets, a time, or a saved cut
assert headwater.read(spark, flights, as_of={0: 700, 1: 10}).count() == 710
moment = rows.where("partition = 0 AND offset = 600").select("timestamp").toArrow()[0][0].as_py()
before = headwater.read(spark, flights, as_of=moment)
assert before.where("partition = 0").count() == 600
publish(flights, 1000, 5)
assert headwater.read(spark, flights).count() == 2010
assert headwater.read(spark, flights, as_of=saved).count() == 2000

# %% The latest record of every key; a tombstone ends its key
latest = headwater.read(spark, flights, latest=True, as_of=saved, columns=["key", "value"])
assert {bytes(row.key).decode() for row in latest.collect()} == {f"N{n}" for n in range(19)}
assert latest.count() == 2 * 19

# %% Several streams at one instant
both = headwater.read_many(spark, [flights, fares])
assert {name: one.count() for name, one in both.items()} == {flights: 2010, fares: 202}

# %% A streaming query from the first record on, out of the table and then out of the log
scratch = tempfile.mkdtemp(prefix="headwater-notebook-", dir=os.environ.get("HEADWATER_SCRATCH"))
stream = (
    spark.readStream.format("headwater")
    .option("subscribe", flights)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 700)
    .load()
)
query = (
    stream.writeStream.format("delta")
    .option("checkpointLocation", f"{scratch}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{scratch}/table")
)
query.awaitTermination()
copied = spark.read.format("delta").load(f"{scratch}/table")
assert copied.count() == copied.select("partition", "offset").distinct().count() == 2010

# %% Write into a stream: a retried task stores nothing twice
out = headwater.read(spark, flights, as_of=saved, columns=["key", "value", "partition"])
out.write.format("headwater").option("stream", copies).mode("append").save()
assert headwater.read(spark, copies).count() == 2000

# %% Done: end the leases, delete the streams, stop
headwater.release_all()
for name in (flights, fares, copies):
    client.delete_stream(name)
spark.stop()
print("every step was exact")
