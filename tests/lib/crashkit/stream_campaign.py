"""The streaming campaign: a query over both tiers is killed again and again, and all it needs.

Records arrive, segments ship and are freed, the table is optimised; a streaming query from earliest
copies the stream into a table of its own. Each round kills something at a chosen moment: the query
(driver and JVM, or the Python workers of its tasks), the broker, or the object store for a while.
At the end the copy has to be the acknowledged sequence: each record once, in order.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from broker.errors import HeadwaterError
from crashkit.campaign import CampaignError
from crashkit.moments import FileWatch, Moment
from crashkit.nats_load import NatsLoad, NatsLoadConfig
from crashkit.processes import BrokerProcess
from crashkit.query_process import QueryProcess
from crashkit.reads import COLUMNS, read_through_broker, rows_of
from crashkit.recorder import Recorder
from crashkit.records import RecordMaker
from headwater import embedded
from headwater.client import Client
from simkit.history import PartReading, Reading, Row, Verdict
from simkit.history_checker import check_reading
from simkit.tcp_proxy import TcpProxy

STREAM: Final = "crash"
PARTITIONS: Final = 2
_CREATE, _MOVED_TO, _OPEN = 0x100, 0x80, 0x20
_BATCH_TIMEOUT_S: Final = 300.0
_CATCH_UP_S: Final = 240.0
_FLUSH_MS: Final = 60_000

# What Spark and the sink do to files, in the order of one batch.
MOMENTS: Final = (
    Moment.of("offsets written", _CREATE | _MOVED_TO, r".*/checkpoint/offsets/\d+"),
    Moment.of("task writes a file", _CREATE, r".*/copy/.*\.parquet"),
    Moment.of("sink commit", _CREATE | _MOVED_TO, r".*/copy/_delta_log/\d{20}\.json"),
    Moment.of("commit written", _CREATE | _MOVED_TO, r".*/checkpoint/commits/\d+"),
    Moment.of("checkpoint read", _OPEN, r".*/checkpoint/(offsets|commits)/\d+"),
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCampaignConfig:
    """What to run."""

    rounds: int
    seed: int
    folder: Path
    records_per_s: int = 50  # of each of the four publishers
    records_per_trigger: int = 5000
    sink: str = "delta"  # "delta": Spark's own sink; "ingest": the job


@dataclass(slots=True)
class StreamTally:
    """What a campaign has seen."""

    kills: dict[str, int] = field(default_factory=dict)
    moments: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    optimised: int = 0
    audits: int = 0

    @property
    def kills_count(self) -> int:
        """All kills."""
        return sum(self.kills.values())


class StreamCampaign:
    """One run, from empty directories to the last audit."""

    def __init__(self, config: StreamCampaignConfig, say: Say) -> None:
        self._config = config
        self._say = say
        self._random = random.Random(config.seed)
        self.recorder = Recorder()
        self.tally = StreamTally()
        self.verdict = Verdict()
        self.rows_count = 0
        folder = config.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._nats = embedded.start_nats(folder / "nats")
        self._moto = embedded.start_moto(folder / "moto", bucket="crash")
        # Everybody reaches the store through a proxy, so that it can vanish for a while.
        self._proxy = TcpProxy(int(self._moto.address.rpartition(":")[2]))
        environment = embedded.moto_environment(f"http://127.0.0.1:{self._proxy.port}")
        self._environment = environment
        self.broker = BrokerProcess(
            folder / "broker",
            nats_url=self._nats.address,
            lake="s3://crash/lake",
            environment=environment,
        )
        self.client = Client(self.broker.url)
        self._copy, self._checkpoint = folder / "copy", folder / "checkpoint"
        self.query = QueryProcess(folder, self._command(), environment)
        self._loads: list[NatsLoad] = []

    def run(self) -> Verdict:
        """Run every round and the last audit; return what was found.

        Raises:
            CampaignError: something ended by itself, or does not go on.
        """
        try:
            self.broker.start()
            self.broker.wait_ready()
            self._create_stream()
            self._start_load()
            self._begin_cold()
            self.query.start()
            self._wait_for_batch(timeout_s=_BATCH_TIMEOUT_S)
            while self.tally.kills_count < self._config.rounds:
                self._round()
            self.audit()
        finally:
            self.close()
        return self.verdict

    def close(self) -> None:
        """End everything that was started. Blocks."""
        for load in self._loads:
            load.stop()
        self._loads.clear()
        self.query.stop()
        self.client.close()
        if self.broker.exit_code is None:
            with suppress(AssertionError):
                self.broker.kill()
        self._proxy.close()
        self._moto.stop()
        self._nats.stop()

    # ------------------------------------------------------------------ setting up

    def _command(self) -> list[str]:
        config = self._config
        if config.sink == "ingest":
            return [
                sys.executable, "-m", "headwater.cli.main", "job", "ingest",
                "--server", self.broker.url, "--stream", STREAM, "--table", str(self._copy),
                "--format", "raw", "--checkpoint", str(self._checkpoint), "--trigger", "100ms",
                "--max-records-per-trigger", str(config.records_per_trigger),
                "--master", "local[2,4]",
            ]  # fmt: skip
        wanted = {
            "server": self.broker.url,
            "stream": STREAM,
            "table": str(self._copy),
            "checkpoint": str(self._checkpoint),
            "records_per_trigger": config.records_per_trigger,
        }
        program = Path(__file__).with_name("stream_driver.py")
        return [sys.executable, str(program), json.dumps(wanted)]

    def _create_stream(self) -> None:
        dice = self._random
        self.client.create_stream(
            STREAM,
            subject="crash.in",
            partitions=PARTITIONS,
            puback=True,
            segment_bytes_max=dice.choice([128 * 1024, 512 * 1024]),
            segment_age_ms_max=dice.choice([1500, 4000]),
            local_retention_bytes=dice.choice([0, 64 * 1024]),
            dedup_window_ms=60_000,
        )

    def _start_load(self) -> None:
        seed = self._config.seed
        for number in range(PARTITIONS):
            subject = "crash.in" if number == 0 else f"crash.in.{number}"
            for window in (1, 64):
                name = f"nats{number}w{window}"
                maker = RecordMaker(name, subject, seed=f"{seed}/{name}", large_bytes_max=8192)
                config = NatsLoadConfig(
                    port=self._nats.port, partition=number, subject=subject, window=window,
                    records_per_s=self._config.records_per_s,
                )  # fmt: skip
                self._loads.append(NatsLoad(config, maker, self.recorder, seed=f"{seed}/{name}/l"))
        for load in self._loads:
            load.start()

    def _begin_cold(self) -> None:
        """Let the query find a history that is in the table, not in the log."""
        deadline_s = time.monotonic() + 60
        while self.recorder.acked_count < 2000:
            self._complain(deadline_s, "2,000 records to be acknowledged")
            time.sleep(0.05)
        self.client.tier_flush(STREAM, timeout_ms=_FLUSH_MS)

    # ------------------------------------------------------------------ one round

    def _round(self) -> None:
        acked = self.recorder.acked_count
        time.sleep(self._random.uniform(0, 1.5))
        if self._random.random() < 0.1:
            self._optimise()
        moment = self._wait_for_moment()
        place = self._place()
        what = self._random.choices(
            ["driver", "workers", "broker", "store", "broker frozen"], [30, 25, 25, 10, 10]
        )[0]
        getattr(self, f"_break_{what.replace(' ', '_')}")()
        tally = self.tally
        for counts, name in ((tally.kills, what), (tally.moments, moment), (tally.places, place)):
            counts[name] = counts.get(name, 0) + 1
        if self._random.random() < 0.8:
            self._wait_for_batch(timeout_s=_BATCH_TIMEOUT_S)
        self._say(
            f"kill {tally.kills_count:3d}: {what} at {moment}, {place}; acked "
            f"{self.recorder.acked_count} (+{self.recorder.acked_count - acked}), "
            f"batches {self._batches_done()}"
        )

    def _wait_for_moment(self) -> str:
        if self._random.random() < 0.2:
            time.sleep(self._random.uniform(0, 1.0))
            return "any time"
        moment = self._random.choice(MOMENTS)
        with FileWatch(self._checkpoint, self._copy) as watch:
            came = watch.wait(moment, 5.0)
        if self._random.random() < 0.5:
            time.sleep(self._random.uniform(0, 0.1))
        return moment.name if came else "any time"

    def _break_driver(self) -> None:
        self.query.kill()
        time.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0, 2.0)]))
        self.query.start()

    def _break_workers(self) -> None:
        self.query.kill_workers()

    def _break_broker(self) -> None:
        self.broker.kill()
        time.sleep(self._random.choice([0.0, self._random.uniform(0, 2.0)]))
        self.broker.start()
        self.broker.wait_ready()

    def _break_broker_frozen(self) -> None:
        self.broker.pause()
        time.sleep(self._random.uniform(0.2, 2.0))
        self.broker.resume()

    def _break_store(self) -> None:
        self._proxy.refuse(True)
        self._proxy.cut()
        time.sleep(self._random.uniform(0.2, 3.0))
        self._proxy.refuse(False)

    def _optimise(self) -> None:
        """Rewrite the stream's table into fewer files while everybody reads and appends."""
        with suppress(deltalake.exceptions.DeltaError, OSError):
            stream = self.client.stream(STREAM)
            table = deltalake.DeltaTable(
                f"s3://crash/lake/{stream.namespace}/{stream.table_name}",
                storage_options=self._environment,
            )
            table.optimize.compact()
            self.tally.optimised += 1

    def _place(self) -> str:
        """Tell in which tier the query reads: where its newest batch ends, against the tiers."""
        planned = self._planned()
        if planned is None:
            return "before the first batch"
        try:
            where = {one.partition: one for one in self.client.tier_status(STREAM)}
        except HeadwaterError:  # only a word for the tally
            return "broker down"
        behind = [end < where[number].cold.end for number, end in planned.items()]
        if all(behind):
            return "query in the cold tier"
        return "query at the hand-over" if any(behind) else "query in the hot tier"

    def _planned(self) -> dict[int, int] | None:
        names = _numbers(self._checkpoint / "offsets")
        if not names:
            return None
        lines = (self._checkpoint / "offsets" / str(names[-1])).read_text().splitlines()
        try:
            body = json.loads(lines[-1])
        except (ValueError, IndexError):
            return None
        return {int(number): int(end) for number, end in body.get("p", {}).items()} or None

    def _batches_done(self) -> int:
        names = _numbers(self._checkpoint / "commits")
        return names[-1] + 1 if names else 0

    def _wait_for_batch(self, *, timeout_s: float) -> None:
        """Block until one more batch is committed than was."""
        before = self._batches_done()
        deadline_s = time.monotonic() + timeout_s
        while self._batches_done() <= before:
            self._complain(deadline_s, "the query to commit a batch")
            time.sleep(0.05)

    def _complain(self, deadline_s: float, what: str) -> None:
        for load in self._loads:
            if load.failure is not None:
                raise CampaignError(load.failure)
        if self.query.exit_code is not None:
            raise CampaignError(f"the query ended by itself:\n{self.query.log_tail()}")
        if time.monotonic() > deadline_s:
            raise CampaignError(f"waited too long for {what}:\n{self.query.log_tail()}")

    # ------------------------------------------------------------------ the audit

    def audit(self) -> None:
        """Drain the load, let the query catch up, and judge its copy and the stream itself."""
        for load in self._loads:
            load.pause()
        deadline_s = time.monotonic() + 90
        while any(load.unanswered for load in self._loads):
            self._complain(deadline_s, "every record to be answered")
            time.sleep(0.05)
        ends = {
            part.partition: int(part.high_watermark)
            for part in self.client.describe(STREAM).partitions
        }
        deadline_s = time.monotonic() + _CATCH_UP_S
        while self._copied_count() < sum(ends.values()):
            self._complain(deadline_s, "the query to copy everything")
            time.sleep(0.2)
        began_ns = time.monotonic_ns()
        copied = self._read_copy()
        parts = [
            PartReading(
                partition=number, start=0, cold_end=0, hot_end=end, cold_rows=[],
                hot_rows=copied.get(number, []),
            )
            for number, end in ends.items()
        ]  # fmt: skip
        reading = replace(Reading.of("copy", began_ns, parts), sorted_by_offset=False)
        with self.recorder.history() as history:
            self.verdict.add(check_reading(history, reading))
            self.verdict.add(check_reading(history, read_through_broker(self.client, STREAM)))
        self.rows_count = sum(len(rows) for rows in copied.values())
        self.tally.audits += 1

    def _copied_count(self) -> int:
        table = self._open_copy()
        if table is None:
            return 0
        added = pa.table(table.get_add_actions(flatten=True))
        return sum(added.column("num_records").to_pylist())

    def _open_copy(self) -> deltalake.DeltaTable | None:
        with suppress(deltalake.exceptions.TableNotFoundError):
            return deltalake.DeltaTable(str(self._copy))
        return None

    def _read_copy(self) -> dict[int, list[Row]]:
        """Return the copy's rows; inside each file the offsets of a partition have to ascend."""
        table = self._open_copy()
        assert table is not None, "the copy was never created"
        found: dict[int, list[Row]] = {}
        for uri in table.file_uris():
            newest: dict[int, int] = {}
            for batch in pq.ParquetFile(uri).iter_batches(columns=list(COLUMNS)):
                for number, row in rows_of(batch):
                    if row.offset <= newest.get(number, -1):
                        raise CampaignError(f"{uri}: offset {row.offset} is out of order")
                    newest[number] = row.offset
                    found.setdefault(number, []).append(row)
        return found


def _numbers(folder: Path) -> list[int]:
    with suppress(OSError):
        return sorted(int(one.name) for one in folder.iterdir() if one.name.isdigit())
    return []
