"""The rows of the table and their bars, as data.

Figures are named ``<measure>/<case>/<side>``. The sides are ``flight`` and ``nats`` (ours), and
``jetstream``, ``jetstream_synced`` and ``kafka`` (peers). The module of a measure describes it.
"""

from __future__ import annotations

from typing import Final

from bench.report.table import AtLeast, AtMost, Bar, Row, Times

_SIZES: Final = {"100B": "100 B", "1KiB": "1 KiB"}


def _publish(size: str, publishers: int) -> Row:
    bars: tuple[Bar, ...]
    case = f"publish/{size}/{publishers}p"
    who = "one publisher" if publishers == 1 else f"{publishers} publishers"
    if size == "100B":
        bar, bars = "≥ 5× Kafka", (Times(5.0, (f"{case}/kafka",)),)
    else:
        bar = "≥ 1.3× every default"
        bars = (Times(1.3, (f"{case}/jetstream",)), Times(1.3, (f"{case}/kafka",)))
    return Row(
        path=f"Flight publish, {_SIZES[size]}, {who}, fdatasync before every ack",
        unit="rec/s",
        ours=(f"{case}/flight",),
        default=(f"{case}/jetstream",),
        synced=(f"{case}/jetstream_synced",),
        kafka=(f"{case}/kafka",),
        bar=bar,
        bars=(bars,),
        headline=f"durable publish, {_SIZES[size]}" if publishers == 1 else "",
    )


def _ingest(size: str) -> Row:
    bars: tuple[Bar, ...]
    peer = f"publish/{size}/1p"
    if size == "100B":
        bar, bars = "≥ 2.5× JetStream", (Times(2.5, (f"{peer}/jetstream",)),)
    else:
        bar = "≥ 1.3× every default"
        bars = (Times(1.3, (f"{peer}/jetstream",)), Times(1.3, (f"{peer}/kafka",)))
    return Row(
        path=f"plain NATS messages made durable, {_SIZES[size]} (peer: acknowledged publish)",
        unit="rec/s",
        ours=(f"ingest/{size}/nats",),
        default=(f"{peer}/jetstream",),
        synced=(f"{peer}/jetstream_synced",),
        kafka=(f"{peer}/kafka",),
        bar=bar,
        bars=(bars,),
        headline="plain NATS messages made durable, 100 B" if size == "100B" else "",
    )


def _plain(size: str) -> Row:
    return Row(
        path=f"the same raw publishers into JetStream, {_SIZES[size]}: what is stored",
        unit="rec/s",
        ours=(f"ingest/{size}/nats",),
        default=(f"ingest/{size}/jetstream",),
        synced=(f"ingest/{size}/jetstream_synced",),
    )


def _puback(size: str) -> Row:
    return Row(
        path=f"NATS publish with PubAck, {_SIZES[size]}, the peer's client on both sides",
        unit="rec/s",
        ours=(f"puback/{size}/nats",),
        default=(f"publish/{size}/1p/jetstream_async",),
        synced=(f"publish/{size}/1p/jetstream_async_synced",),
        headline="NATS publish with PubAck, 100 B" if size == "100B" else "",
    )


def _latency(side: str, name: str, p50_ms: float, p99_ms: float) -> Row:
    def pair(which: str) -> tuple[str, str]:
        return f"latency/100B/{which}_p50", f"latency/100B/{which}_p99"

    return Row(
        path=f"one outstanding record, 100 B, {name}: p50 / p99 to the durable ack",
        unit="ms",
        ours=pair(side),
        default=pair("jetstream"),
        synced=pair("jetstream_synced"),
        bar=f"≤ {p50_ms} / {p99_ms} ms",
        bars=((AtMost(p50_ms),), (AtMost(p99_ms),)),
        headline="one outstanding record by Flight, p50 to its ack" if side == "flight" else "",
    )


def _catch_up(size: str) -> Row:
    case = f"catch_up/{size}"
    return Row(
        path=f"catch-up read by Flight, {_SIZES[size]}",
        unit="rec/s",
        ours=(f"{case}/flight",),
        default=(f"{case}/jetstream",),
        kafka=(f"{case}/kafka",),
        headline="catch-up read, 100 B" if size == "100B" else "",
        bar="≥ 4× Kafka",
        bars=((Times(4.0, (f"{case}/kafka",)),),),
    )


def _tier(store: str, size: str) -> tuple[Row, Row]:
    case = f"tier/{store}/{size}"
    where = "local store" if store == "local" else "moto (S3)"
    return (
        Row(
            path=f"segment → verified Parquet → committed, {_SIZES[size]}, {where}, per core",
            unit="MiB/s",
            ours=(f"{case}/mib_per_core_s",),
            bar="≥ 40 MiB/s a core",
            bars=((AtLeast(40.0),),),
        ),
        Row(
            path=f"… CPU seconds / S3 requests per GiB, {_SIZES[size]}, {where}",
            unit="per GiB",
            ours=(f"{case}/cpu_s_per_gib", f"{case}/requests_per_gib")
            if store == "moto"
            else (f"{case}/cpu_s_per_gib",),
        ),
    )


def _full_read(tail_percent: int) -> Row:
    ours, native = f"spark/full/{tail_percent}pct", "spark/native/0pct"
    with_bar = tail_percent == 1
    return Row(
        path=f"Spark full read, {tail_percent} % tail (peer: native Delta scan of as many rows)",
        unit="s",
        ours=(ours,),
        default=(native,),
        bar="≤ 1.10× native" if with_bar else "",
        bars=((Times(1.10, (native,), at_most=True),),) if with_bar else (),
        headline="Spark reads the whole stream, 1 % of it in the log" if with_bar else "",
    )


def _spark_log(case: str, path: str, times: float, peer: str = "kafka") -> Row:
    ours, theirs = f"spark_log/{case}/ours", f"spark_log/{case}/{peer}"
    who = "delta-spark's writer" if peer == "delta_spark" else "Kafka"
    return Row(
        path=path,
        unit="rows/s",
        ours=(ours,),
        default=(theirs,),
        bar=f"≥ {times:g}× {who}",
        bars=((Times(times, (theirs,)),),),
    )


def _cpu(case: str, peer: str = "kafka") -> Row:
    return Row(
        path=f"… CPU of all processes of {case}, servers included, per million rows",
        unit="s",
        ours=(f"spark_log/{case}/ours_cpu",),
        default=(f"spark_log/{case}/{peer}_cpu",),
    )


def _encryption(size: str) -> tuple[Row, Row]:
    case = f"encryption/{size}"
    return (
        Row(
            path=f"Flight publish to a plain / an encrypted stream, {_SIZES[size]}",
            unit="rec/s",
            ours=(f"{case}/publish_plain", f"{case}/publish_encrypted"),
        ),
        Row(
            path=f"… read from its start, {_SIZES[size]}",
            unit="rec/s",
            ours=(f"{case}/read_plain", f"{case}/read_encrypted"),
        ),
    )


def _planning(files: int) -> tuple[Row, Row]:
    case = f"planning/{files}"
    return (
        Row(
            path=f"planning a unified read of {files:,} files, first / later",
            unit="s",
            ours=(f"{case}/cold", f"{case}/warm"),
        ),
        Row(
            path=f"… memory of the driver: Python / JVM heap in use, {files:,} files",
            unit="MiB",
            ours=(f"{case}/python_mib", f"{case}/jvm_heap_mib"),
        ),
    )


ROWS: Final[tuple[Row, ...]] = (
    *(_publish(size, count) for size in _SIZES for count in (1, 4)),
    *(_ingest(size) for size in _SIZES),
    *(_plain(size) for size in _SIZES),
    *(_puback(size) for size in _SIZES),
    _latency("flight", "Flight", 0.45, 0.9),
    _latency("nats", "NATS PubAck", 0.7, 1.4),
    *(_catch_up(size) for size in _SIZES),
    *_tier("local", "100B"),
    *_tier("local", "1KiB"),
    *_tier("moto", "100B"),
    Row(
        path="Spark read of the tail by the catalog, local[2], 100 B, offset, timestamp and value "
        "(peer: native Delta scan)",
        unit="rows/s",
        ours=("spark/tail_table/rows_per_s",),
        default=("spark/native/rows_per_s",),
        bar="≥ 5 M rows/s",
        bars=((AtLeast(5e6),),),
    ),
    Row(
        path="… by the Python source, the same columns",
        unit="rows/s",
        ours=("spark/tail/rows_per_s",),
        default=("spark/native/rows_per_s",),
        bar="≥ 3 M rows/s",
        bars=((AtLeast(3e6),),),
        headline="Spark reads what is in the log alone",
    ),
    Row(
        path="… by the Python source, every column",
        unit="rows/s",
        ours=("spark/tail_all/rows_per_s",),
        default=("spark/native/rows_per_s",),
    ),
    _full_read(0),
    _full_read(1),
    _full_read(20),
    _spark_log("batch", "Spark batch read of all records, 1 % hot (peer: its Kafka source)", 6),
    _cpu("batch"),
    Row(
        path="Structured Streaming from earliest, AvailableNow, into nothing (peer: Kafka source)",
        unit="rows/s",
        ours=("spark_log/stream/ours",),
        default=("spark_log/stream/kafka",),
    ),
    Row(
        path="… payload",
        unit="MiB/s",
        ours=("spark_log/stream/ours_mib",),
        default=("spark_log/stream/kafka_mib",),
    ),
    _cpu("stream"),
    _spark_log("ingest", "ingest into a new Delta table, AvailableNow (peer: Kafka source)", 3),
    _cpu("ingest"),
    _spark_log(
        "append",
        "append of a stream to a Delta table (peer: delta-spark's writer)",
        2,
        "delta_spark",
    ),
    _cpu("append", "delta_spark"),
    Row(
        path="acknowledged → returned by a unified query, warm session, p50 / p99",
        unit="s",
        ours=("spark_log/fresh_query_p50", "spark_log/fresh_query_p99"),
        bar="p99 ≤ 1 s",
        bars=((), (AtMost(1.0),)),
    ),
    Row(
        path="record → commit of the curated table, 1,000/s, 1 s trigger, p50 / p99 (peer: Kafka)",
        unit="s",
        ours=("spark_log/fresh_curated_p50", "spark_log/fresh_curated_p99"),
        default=("spark_log/fresh_kafka_p50", "spark_log/fresh_kafka_p99"),
    ),
    *(row for files in (10, 1_000, 100_000) for row in _planning(files)),
    *(row for size in _SIZES for row in _encryption(size)),
    Row(
        path="planning in a new process, 1,000 versions: with kept proofs / proving them all",
        unit="s",
        ours=("proving/kept", "proving/walked"),
        bar="≤ 1 s",
        bars=((AtMost(1.0),), (AtMost(1.0),)),
    ),
    Row(
        path="broker's highest resident memory in the first / second half of 10 GiB",
        unit="MiB",
        ours=("memory/early_mib", "memory/late_mib"),
        bar="≤ 350 MiB, flat (≤ 1.15×)",
        bars=((), (AtMost(350.0), Times(1.15, ("memory/early_mib",), at_most=True))),
    ),
    Row(
        path="… under an hour of mixed load / after a minute of rest",
        unit="MiB",
        ours=("soak/highest_mib", "soak/rested_mib"),
        bar="≤ 350 MiB, given back within a minute",
        bars=(
            (AtMost(350.0), Times(1.15, ("soak/first_quarter_mib",), at_most=True)),
            (Times(1.0, ("soak/highest_mib",), at_most=True),),
        ),
    ),
    Row(
        path="restart to serving with that log: after a stop / after kill −9",
        unit="s",
        ours=("restart/stopped_s", "restart/killed_s"),
        bar="≤ 2 s for 10 GB",
        bars=((AtMost(2.0),), (AtMost(2.0),)),
    ),
)
