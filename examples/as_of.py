"""Read a stream as it was: at a time, and at a saved cut.

A cut is one consistent position of the whole stream. Saved, it is a line of text, which gives the
same rows tomorrow, whatever was published since. A time means "the records before the first one
that was stored at or after it". Neither needs Spark; with Spark use ``headwater.read(…, as_of=…)``.

Needs a server: ``headwater up`` in another terminal.

Prints::

    the saved cut has 3 records: ['mon', 'tue', 'wed']
    before Wednesday: ['mon', 'tue']
    now: ['mon', 'tue', 'wed', 'thu']
    proved: 4 records, offsets 0 to 4
"""

from datetime import UTC, datetime, timedelta

import headwater
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from headwater.reads.as_of import AsOf, narrowed, parse_as_of
from headwater.reads.history import History

STREAM = "example_days"
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def read(client: headwater.Client, as_of: AsOf | None = None) -> tuple[list[str], Certificate]:
    """Return all values up to a moment, and the certificate of the read."""
    moment = None if as_of is None else parse_as_of(as_of)
    if moment is None:
        cut = client.cut(STREAM)
    elif isinstance(moment, Cut):
        cut = moment
    else:
        cut = narrowed(client.cut(STREAM), moment, client)
    history = History(client, cut)
    values = [
        value.decode() for one in history.batches(["value"]) for value in one["value"].to_pylist()
    ]
    return values, history.certificate()


def main() -> None:
    """Save a cut, publish more, read as of the cut, as of a time, and now."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)

        with client.producer(STREAM) as producer:
            for number, day in enumerate(["mon", "tue", "wed"]):
                # A record's time is the broker's, unless the producer gives one (µs UTC).
                moment = MONDAY + timedelta(days=number)
                record = {"value": day.encode(), "timestamp": int(moment.timestamp()) * 1_000_000}
                producer.send([record]).result()
        saved = client.cut(STREAM, ttl_ms=600_000).save()
        client.tier_flush(STREAM)  # these three are in the Delta table from here on
        with client.producer(STREAM) as producer:
            producer.send(["thu"]).result()  # and this one is in the log only

        values, _ = read(client, as_of=saved)
        print(f"the saved cut has {len(values)} records: {values}")
        values, _ = read(client, as_of="2026-01-07T00:00:00Z")  # or a datetime, or microseconds
        print(f"before Wednesday: {values}")
        values, certificate = read(client)
        print(f"now: {values}")
        (part,) = certificate.partitions
        print(f"proved: {certificate.records_count} records, offsets {part.start} to {part.end}")


if __name__ == "__main__":
    main()
