"""The crash campaign: rounds of load, a kill at a chosen moment, recovery; audits in between.

All randomness of the plan comes from the seed; when things happen inside the broker does not, so a
seed repeats the plan, not the run. Nothing here knows the broker's insides but file names.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.errors import InvalidConfigError, UnavailableError
from checkkit.anomalies import Verdict
from checkkit.check_copies import compare_tables
from checkkit.checker import Checker
from checkkit.facts import Rules
from checkkit.readings import Reading, Row
from crashkit.flight_load import FlightLoad, FlightLoadConfig
from crashkit.moments import MOMENTS, RECOVERY_MOMENTS, S3_MOMENTS, FileWatch, LogWatch
from crashkit.nats_load import NatsLoad, NatsLoadConfig
from crashkit.processes import BrokerProcess
from crashkit.reads import (
    SparkReader,
    final_table,
    read_plain_delta,
    read_through_broker,
    read_unified,
    verify_fully,
)
from crashkit.recorder import Recorder
from crashkit.records import RecordMaker
from crashkit.running import CampaignError
from headwater.client import Client
from headwater.local import embedded

STREAM: Final = "crash"
PARTITIONS: Final = 2
_SEGMENT_BYTES: Final = (64 * 1024, 128 * 1024, 256 * 1024)
_LARGE_BYTES_MAX: Final = 40 * 1024
_DRAIN_S: Final = 150.0
_DEDUP_MS: Final = 600_000
_FLUSH_MS: Final = 120_000
_RESTART_KILLS_MAX: Final = 3
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignConfig:
    """What to run. ``s3`` is "local" or "moto"."""

    rounds: int
    seed: int
    folder: Path
    s3: str = "local"
    check_every: int = 5
    spark_every: int = 0  # 0: never
    load_s_max: float = 2.5
    records_per_s: int = 300  # of each NATS publisher
    forked: bool = False  # brokers start by a fork, not as `python -m broker`


@dataclass(slots=True)
class Tally:
    """What a campaign has seen."""

    kills: int = 0
    recovery_kills: int = 0
    nats_restarts: int = 0
    pauses: int = 0
    audits: int = 0
    spark_reads: int = 0
    recovery_s: list[float] = field(default_factory=list)
    moments: dict[str, int] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)


class Campaign:
    """One run, from empty directories to the last audit."""

    def __init__(self, config: CampaignConfig, say: Say) -> None:
        self._config = config
        self._say = say
        self._random = random.Random(config.seed)
        self.recorder = Recorder()
        self.tally = Tally()
        self._loads: list[NatsLoad | FlightLoad] = []
        self._spark: SparkReader | None = None
        self._spark_absent = False
        with self.recorder.history() as history:
            # One replica, whose disk keeps what it synced: every ack is for good.
            self.checker = Checker(history, Rules(leader_acks_survive=True))
        config.folder.mkdir(parents=True, exist_ok=True)
        self._nats = embedded.start_nats(config.folder / "nats", port=embedded.free_port())
        self._moto: embedded.EmbeddedServer | None = None
        self._lake_dir = config.folder / "lake"
        environment: dict[str, str] = {}
        lake = str(self._lake_dir)
        if config.s3 == "moto":
            self._moto = embedded.start_moto(config.folder / "moto", bucket="crash")
            environment = embedded.moto_environment(self._moto.address)
            os.environ.update(environment)  # our own reads go there, too
            lake = "s3://crash/lake"
        self._environment = environment
        self.broker = BrokerProcess(
            config.folder / "broker",
            nats_url=self._nats.address,
            lake=lake,
            environment=environment,
            forked=config.forked,
        )
        self.client = Client(self.broker.url)

    def run(self) -> Verdict:
        """Run every round and the last audit; return the sum of what was found.

        Raises:
            CampaignError: see there; the verdict so far is in ``checker``.
        """
        try:
            self.broker.start()
            self.broker.wait_ready()
            self._create_stream()
            self._start_load()
            for number in range(1, self._config.rounds + 1):
                self._round(number)
                if not self.checker.verdict.ok:
                    break
            self._last_audit()
        finally:
            self.close()
        return self.checker.verdict

    def close(self) -> None:
        """End everything that was started; a second close is fine. Blocks."""
        for load in self._loads:
            load.stop()
        self._loads.clear()
        self.client.close()
        if self._spark is not None:
            self._spark.close()
        if self.broker.exit_code is None:
            with suppress(AssertionError):
                self.broker.kill()
        self._nats.stop()
        if self._moto is not None:
            self._moto.stop()

    # ------------------------------------------------------------------ setting up

    def _create_stream(self) -> None:
        dice = self._random
        self.client.create_stream(
            STREAM,
            subject="crash.in",
            partitions=PARTITIONS,
            puback=True,
            segment_bytes_max=dice.choice(_SEGMENT_BYTES),
            segment_age_ms_max=dice.choice([400, 1000, 3000]),
            index_interval_bytes=dice.choice([4096, 65536]),
            local_retention_bytes=dice.choice([0, 256 * 1024, 1024 * 1024]),
            compression=dice.choice(["none", "lz4", "zstd"]),
            # Above any outage; ids keep their segments on disk, so a short run frees none.
            dedup_window_ms=_DEDUP_MS if self._config.rounds < 10 else _DEDUP_MS // 10,
        )

    def _start_load(self) -> None:
        seed = self._config.seed
        for number in range(PARTITIONS):
            subject = "crash.in" if number == 0 else f"crash.in.{number}"
            for window in (1, 64):
                name = f"nats{number}w{window}"
                maker = RecordMaker(
                    name, subject, seed=f"{seed}/{name}", large_bytes_max=_LARGE_BYTES_MAX
                )
                nats_config = NatsLoadConfig(
                    port=self._nats.port,
                    partition=number,
                    subject=subject,
                    window=window,
                    records_per_s=self._config.records_per_s,
                )
                self._loads.append(
                    NatsLoad(nats_config, maker, self.recorder, seed=f"{seed}/{name}/load")
                )
            name = f"flight{number}"
            maker = RecordMaker(
                name, subject, seed=f"{seed}/{name}", large_bytes_max=_LARGE_BYTES_MAX // 8
            )
            flight_config = FlightLoadConfig(
                url=self.broker.url,
                stream=STREAM,
                partition=number,
                batches_per_s=30,
                batch_records_max=20,
            )
            self._loads.append(
                FlightLoad(flight_config, maker, self.recorder, seed=f"{seed}/{name}/load")
            )
        for load in self._loads:
            load.start()

    # ------------------------------------------------------------------ one round

    def _round(self, number: int) -> None:
        acked_before = self.recorder.acked_count
        notes: list[str] = []
        self._disturb(notes)
        self._kill_at_a_moment(notes)
        recovery_s = self._recover(notes)
        checked = ""
        if number % self._config.check_every == 0:
            self._wait_for_acks(acked_before)
            with_spark = bool(self._config.spark_every) and number % self._config.spark_every == 0
            drain = with_spark or self._random.random() < 0.5  # a JVM takes its time
            checked = "  " + self.audit(drain=drain, with_spark=with_spark)
        self._complain_about_load()
        verdict = self.checker.verdict
        acked = self.recorder.acked_count
        self._say(
            f"round {number:3d}: acked {acked} (+{acked - acked_before}), {', '.join(notes)}, "
            f"ready in {recovery_s:.2f} s, lost {verdict.lost}, doubled {verdict.doubled}{checked}"
        )

    def _disturb(self, notes: list[str]) -> None:
        """Let the load run; sometimes restart nats-server or freeze the broker meanwhile."""
        dice = self._random.random()
        time.sleep(self._random.uniform(0.2, self._config.load_s_max) / 2)
        if dice < 0.15:
            port = self._nats.port
            self._nats.process.kill()
            self._nats.stop()
            time.sleep(self._random.uniform(0, 1.0))
            self._nats = embedded.start_nats(self._config.folder / "nats", port=port)
            self.tally.nats_restarts += 1
            notes.append("nats-server restarted")
        elif dice < 0.30:
            self.broker.pause()
            time.sleep(self._random.uniform(0.1, 2.0))
            self.broker.resume()
            self.tally.pauses += 1
            notes.append("broker frozen for a while")
        time.sleep(self._random.uniform(0, self._config.load_s_max) / 2)

    def _kill_at_a_moment(self, notes: list[str]) -> None:
        """Kill -9 within a fraction of a millisecond of a chosen event, or a little later."""
        name = self._wait_for_moment()
        delay_s = self._random.choice([0.0, 0.0, self._random.uniform(0, 0.03)])
        time.sleep(delay_s)
        if self.broker.exit_code is not None:
            raise CampaignError(
                f"the broker ended by itself with {self.broker.exit_code}:\n"
                + self.broker.log_tail()
            )
        if self._random.random() < 0.1:
            name = self._kill_while_it_stops()
        else:
            self.broker.kill()
        self.tally.kills += 1
        self.tally.moments[name] = self.tally.moments.get(name, 0) + 1
        notes.append(f"killed at {name}" + (f" +{delay_s * 1000:.0f} ms" if delay_s else ""))

    def _kill_while_it_stops(self) -> str:
        """Ask it to end, and do not let it finish; sometimes do."""
        patience_s = self._random.choice([0.05, 0.2, 0.5, 10.0])
        return "clean stop" if self.broker.stop_within(patience_s) else "in a clean stop"

    def _wait_for_moment(self) -> str:
        if self._random.random() < 0.15:
            time.sleep(self._random.uniform(0, 0.5))
            return "any time"
        if self._moto is not None and self._random.random() < 0.5:
            name = self._random.choice(sorted(S3_MOMENTS))
            came = LogWatch(self._moto.log_path).wait(S3_MOMENTS[name], 4.0)
            return name if came else "any time"
        moments = MOMENTS if self._moto is None else MOMENTS[:6]
        moment = self._random.choice(moments)
        with FileWatch(self.broker.data_dir, self._lake_dir) as watch:
            return moment.name if watch.wait(moment, 4.0) else "any time"

    def _recover(self, notes: list[str]) -> float:
        """Start again; sometimes kill again while it recovers, up to three times."""
        kills = 0
        while self._random.random() < 0.35 and kills < _RESTART_KILLS_MAX:
            moment = self._random.choice(RECOVERY_MOMENTS)
            with FileWatch(self.broker.data_dir, self._lake_dir) as watch:
                self.broker.start()
                came = watch.wait(moment, 6.0)
            time.sleep(self._random.choice([0.0, self._random.uniform(0, 0.05)]))
            if self.broker.exit_code is not None:
                raise CampaignError(
                    f"the broker did not start ({self.broker.exit_code}):\n{self.broker.log_tail()}"
                )
            self.broker.kill()
            kills += 1
            self.tally.recovery_kills += 1
            name = moment.name if came else "any time after the start"
            self.tally.moments[name] = self.tally.moments.get(name, 0) + 1
        if kills:
            notes.append(f"{kills} more in recovery")
        self.broker.start()
        try:
            recovery_s = self.broker.wait_ready()
        except RuntimeError as error:
            raise CampaignError(str(error)) from error
        self.tally.recovery_s.append(recovery_s)
        return recovery_s

    def _wait_for_acks(self, acked_before: int) -> None:
        """Let some load through after a recovery, so that an audit sees it."""
        deadline_s = time.monotonic() + 10
        while self.recorder.acked_count < acked_before + 50 and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def _complain_about_load(self) -> None:
        for load in self._loads:
            if load.failure is not None:
                raise CampaignError(load.failure)

    # ------------------------------------------------------------------ audits

    def audit(self, *, drain: bool, with_spark: bool) -> str:
        """Read everything in several ways and judge it; return a short summary."""
        if drain:
            self.drain()
        if drain and self._random.random() < 0.5:
            self.client.tier_flush(STREAM, timeout_ms=_FLUSH_MS)
        reading, certificate = read_unified(self.client, STREAM)
        verdict = self._judge(reading)
        rows = _rows_count(reading)
        if certificate.records_count != rows:
            raise CampaignError(f"the certificate counts {certificate.records_count} records")
        if certificate.table_version is not None:
            self._compare_with_delta(reading, certificate.table_version)
        if self._random.random() < 0.3 or with_spark:
            self._judge_alone(read_through_broker(self.client, STREAM))
        if with_spark:
            self._read_by_spark()
        if drain:
            for load in self._loads:
                load.resume()
        self.tally.audits += 1
        cold = sum(len(part.cold_rows) for part in reading.parts.values())
        how = "drained" if drain else "under load"
        return f"audit {how}: {rows} rows, {cold} cold, {verdict if not verdict.ok else 'ok'}"

    def drain(self) -> None:
        """Send nothing new and wait until every record that wants an answer has one.

        Raises:
            CampaignError: records stay unanswered although the broker is up.
        """
        for load in self._loads:
            load.pause()
        deadline_s = time.monotonic() + _DRAIN_S
        while any(load.unanswered for load in self._loads):
            self._complain_about_load()
            if time.monotonic() > deadline_s:
                left = {load.unanswered for load in self._loads}
                raise CampaignError(f"unanswered after {_DRAIN_S:.0f} s: {left}")
            time.sleep(0.02)

    def _last_audit(self) -> None:
        """Once with a hot tail, once with everything cold, through every reader there is."""
        spark = bool(self._config.spark_every)
        self._say("last audit: " + self.audit(drain=True, with_spark=False))
        self.drain()
        verify_fully(self.client, STREAM)
        self.client.tier_flush(STREAM, timeout_ms=_FLUSH_MS)
        self._say("last audit, flushed: " + self.audit(drain=True, with_spark=spark))
        self._judge_run()
        proved = verify_fully(self.client, STREAM)
        self._say(f"verified: {proved.records_count} records against the ledger and the log")

    def _judge(self, reading: Reading) -> Verdict:
        """Judge the reading that the next one of its kind is compared with, too."""
        with self.recorder.history():
            return self.checker.check(reading)

    def _judge_alone(self, reading: Reading) -> None:
        with self.recorder.history():
            self.checker.check_alone(reading)

    def _compare_with_delta(self, reading: Reading, version: int) -> None:
        theirs = self._read_delta(version)
        for number, part in reading.parts.items():
            self.checker.add(compare_tables(part, theirs.get(number, []), reader="delta-rs"))

    def _read_delta(self, version: int) -> dict[int, list[Row]]:
        stream = self.client.stream(STREAM)
        root = str(self._lake_dir) if self._moto is None else "s3://crash/lake"
        uri = f"{root}/{stream.namespace}/{stream.table_name}"
        return read_plain_delta(uri, version, self._environment)

    def _judge_run(self) -> None:
        """Read every copy there is, apart, and judge the whole run by them."""
        self.drain()
        began_ns = time.monotonic_ns()
        unified, certificate = read_unified(self.client, STREAM)
        finals = [unified, read_through_broker(self.client, STREAM)]
        if certificate.table_version is not None:
            cold_ends = {number: part.cold_end for number, part in unified.parts.items()}
            rows = self._read_delta(certificate.table_version)
            finals.append(final_table(rows, cold_ends, began_ns))
        with self.recorder.history():
            self.checker.finish(finals)

    def _read_by_spark(self) -> None:
        """Read through ``headwater.read`` in one JVM, kept for the whole campaign."""
        if self._spark_absent:
            return
        if self._spark is None:
            try:
                self._spark = SparkReader()
            except (InvalidConfigError, UnavailableError) as error:
                self._spark_absent = True
                self._say(f"without Spark: {error}")
                return
        self._judge_alone(self._spark.read(self.client, STREAM))
        self.tally.spark_reads += 1


def _rows_count(reading: Reading) -> int:
    return sum(len(part.cold_rows) + len(part.hot_rows) for part in reading.parts.values())
