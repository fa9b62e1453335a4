"""Read the archive with plain Delta readers, without any code of Headwater.

A stream's table has everything that was shipped. Here delta-rs and pyarrow read it; DuckDB
(``delta_scan('…')``), Trino and Spark can read it at the same address. Records that are not in the
table yet are in the broker's log: to get every record, read through Headwater.

Needs a server: ``headwater up`` in another terminal.

Prints::

    shipped: offsets 0 to 1000
    delta-rs: 1000 records, the last is b'999'
    pyarrow: [{'partition': 0, 'count': 100}]
    in the log only: 5
"""

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

import headwater

STREAM = "example_archive"


def main() -> None:
    """Publish, ship into the table, and open the table with delta-rs and pyarrow."""
    with headwater.Client() as client:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)

        with client.producer(STREAM) as producer:
            producer.send([str(number).encode() for number in range(1000)]).result()
        (status,) = client.tier_flush(STREAM)  # tiering does this by itself, segment by segment
        print(f"shipped: offsets {status.cold.start} to {status.cold.end}")
        with client.producer(STREAM) as producer:
            producer.send([b"live"] * 5).result()
        cut = client.cut(STREAM)

    table = DeltaTable(cut.table_uri)  # a folder here; s3://… with storage_options
    found = QueryBuilder().register("archive", table)
    rows = pa.table(found.execute('SELECT "offset", value FROM archive ORDER BY "offset"'))
    print(f"delta-rs: {rows.num_rows} records, the last is {rows['value'][-1].as_py()}")

    # Predicates reach the files: statistics are on offset and timestamp.
    files = ds.dataset(table.file_uris(), partitioning="hive")
    newest = files.to_table(filter=ds.field("offset") >= 900)
    counts = newest.group_by("partition").aggregate([([], "count_all")])
    counts = counts.rename_columns(["partition", "count"])
    print(f"pyarrow: {counts.to_pylist()}")
    print(f"in the log only: {cut.records_count - rows.num_rows}")


if __name__ == "__main__":
    main()
