"""The streaming campaign: a query over both tiers is killed again and again, and all it needs.

Records arrive, segments ship and are freed, the table is optimised and vacuumed. Queries follow one
another; each copies the stream from earliest, so that the table, the hand-over and the log are met
again and again. Each round kills something at a chosen moment. When a query has had its share, the
load rests until the copy has everything, and the copy has to be the acknowledged sequence: each
record once, in order, over all batches.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from broker.errors import HeadwaterError
from checkkit.anomalies import Verdict
from checkkit.checker import check_reading
from crashkit import copies, stream_faults
from crashkit.flight_load import FlightLoad, FlightLoadConfig
from crashkit.moments import FileWatch
from crashkit.nats_load import NatsLoad, NatsLoadConfig
from crashkit.processes import BrokerProcess
from crashkit.query_process import QueryProcess
from crashkit.reads import read_through_broker
from crashkit.recorder import Recorder
from crashkit.records import RecordMaker
from crashkit.running import CampaignError, count
from crashkit.stream_query import StreamQuery, failures_in
from crashkit.stream_tally import StreamTally
from crashkit.tier_watch import TierWatch
from crashkit.upkeep import Upkeep
from headwater.client import Client
from headwater.local import embedded
from simkit.servers.tcp_proxy import TcpProxy

STREAM: Final = "crash"
PARTITIONS: Final = 2
_BATCH_TIMEOUT_S: Final = 600.0  # Spark gives up on a slow start by itself, and tries again
_DRAIN_S: Final = 90.0
_FLUSH_MS: Final = 60_000
_MOMENT_S: Final = 4.0
_PRIME_S: Final = 300.0  # a JVM that writes its archive takes its time on a busy machine
_COLD_BATCHES: Final = 12  # about so many of a query are to lie in the table when it begins
_MISSING_MAX: Final = 100
_SHOWN_FROM: Final = 60  # rounds from which on every kind has to be met in every phase
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCampaignConfig:
    """What to run."""

    rounds: int
    seed: int
    folder: Path
    archive: Path  # the JVM's prepared classes, kept from run to run
    sink: str = "files"  # who copies: "files", "delta": a sink of Spark's; "ingest": the job
    queries: int = 1  # one after the other, each from earliest
    records_per_s: int = 15  # of each of the four publishers
    history_records: int = 15_000  # there before the first query


class StreamCampaign:
    """One run, from empty directories to the last audit."""

    def __init__(self, config: StreamCampaignConfig, say: Say) -> None:
        self._config, self._say = config, say
        self._random = random.Random(config.seed)
        self.recorder, self.tally, self.verdict = Recorder(), StreamTally(), Verdict()
        self.rows_count = 0
        folder = config.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._nats = embedded.start_nats(folder / "nats")
        self._moto = embedded.start_moto(folder / "moto", bucket="crash")
        # Everybody reaches the store through a proxy, so that it can vanish for a while.
        self._store = TcpProxy(int(self._moto.address.rpartition(":")[2]))
        environment = embedded.moto_environment(f"http://127.0.0.1:{self._store.port}")
        os.environ.update(environment)  # the upkeep of the table goes there, too
        self.broker = BrokerProcess(
            folder / "broker", nats_url=self._nats.address, lake="s3://crash/lake",
            environment=environment, settings={"lake": {"check_interval_ms": 300}}, forked=False,
        )  # fmt: skip
        self.client = Client(self.broker.url)
        self._process = QueryProcess(folder / "query.log", environment)
        self._faults = stream_faults.Faults(
            self._process, self.broker, self._store, self._random, start_query=self._start_query
        )
        self._deck = stream_faults.Deck(config.rounds, self._random)
        self._query: StreamQuery | None = None
        self._watch: TierWatch | None = None
        self._upkeep: Upkeep | None = None
        self._loads: list[NatsLoad | FlightLoad] = []
        self._missing_in_a_row = 0

    @property
    def failures(self) -> list[str]:
        """What a long enough run was to show, and did not."""
        missed = self.tally.missed() if self._config.rounds >= _SHOWN_FROM else []
        return [f"never met: {one}" for one in missed]

    @property
    def upkeep(self) -> Upkeep | None:
        """Who looks after the table; None before the stream is there."""
        return self._upkeep

    def run(self) -> None:
        """Run every query with its kills and its audit.

        Raises:
            CampaignError: something ended by itself, or does not go on.
        """
        config = self._config
        try:
            self.broker.start()
            self.broker.wait_ready()
            self._create_stream()
            self._begin_cold()
            self._prime()
            self._start_load()
            for number in range(config.queries):
                last = config.rounds * (number + 1) // config.queries
                self._copy_once(number, kills_until=last)
        finally:
            self.close()

    def close(self) -> None:
        """End everything that was started. Blocks."""
        for load in self._loads:
            load.stop()
        self._loads.clear()
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._process.exit_code is None:
            self._process.stop()
        self.client.close()
        if self.broker.exit_code is None:
            with suppress(AssertionError):
                self.broker.kill()
        self._store.close()
        self._moto.stop()
        self._nats.stop()

    # ------------------------------------------------------------------ setting up

    def _create_stream(self) -> None:
        dice = self._random
        stream = self.client.create_stream(
            STREAM,
            subject="crash.in",
            partitions=PARTITIONS,
            puback=True,
            segment_bytes_max=dice.choice([256 * 1024, 1024 * 1024]),
            segment_age_ms_max=dice.choice([6000, 12_000]),
            local_retention_bytes=dice.choice([0, 64 * 1024]),
            dedup_window_ms=60_000,
        )
        uri = f"s3://crash/lake/{stream.namespace}/{stream.table_name}"
        self._upkeep = Upkeep(self.broker.url, STREAM, uri, seed=f"{self._config.seed}/upkeep")
        self._watch = TierWatch(self.broker.url, STREAM)

    def _loads_of(self, name: str, windows: tuple[int, ...], rate: int) -> list[NatsLoad]:
        loads = []
        for number in range(PARTITIONS):
            subject = "crash.in" if number == 0 else f"crash.in.{number}"
            for window in windows:
                who = f"{name}{number}w{window}"
                seed = f"{self._config.seed}/{who}"
                maker = RecordMaker(who, subject, seed=seed, large_bytes_max=8192)
                config = NatsLoadConfig(
                    port=self._nats.port, partition=number, subject=subject, window=window,
                    records_per_s=rate,
                )  # fmt: skip
                loads.append(NatsLoad(config, maker, self.recorder, seed=f"{seed}/l"))
        for load in loads:
            load.start()
        return loads

    def _begin_cold(self) -> None:
        """Let the first query find a history that is in the table, not in the log."""
        self._loads = [*self._loads_of("early", (512,), 1000)]
        deadline_s = time.monotonic() + 180
        while self.recorder.acked_count < self._config.history_records:
            self._complain(deadline_s, "the history to be acknowledged")
            time.sleep(0.05)
        self._drain()
        for load in self._loads:
            load.stop()
        self.client.tier_flush(STREAM, timeout_ms=_FLUSH_MS)
        assert self._upkeep is not None
        self._upkeep.start()

    def _start_load(self) -> None:
        self._loads = [*self._loads_of("nats", (1, 64), self._config.records_per_s)]
        for number in range(PARTITIONS):  # with the columns that NATS cannot carry
            subject = "crash.in" if number == 0 else f"crash.in.{number}"
            seed = f"{self._config.seed}/flight{number}"
            maker = RecordMaker(f"flight{number}", subject, seed=seed, large_bytes_max=8192)
            config = FlightLoadConfig(
                url=self.broker.url, stream=STREAM, partition=number, batches_per_s=1,
                batch_records_max=2 * self._config.records_per_s,
            )  # fmt: skip
            load = FlightLoad(config, maker, self.recorder, seed=f"{seed}/l")
            load.start()
            self._loads.append(load)

    # ------------------------------------------------------------------ one query

    def _copy_once(self, number: int, *, kills_until: int) -> None:
        """Run a query from earliest under kills, let it catch up, and judge its output."""
        began_s, kills_before = time.monotonic(), len(self.tally.kills)
        self._forget_leases()
        history = self.client.describe(STREAM).records_count
        limit = max(500, history // _COLD_BATCHES)
        query = self._query = self._made(f"query-{number}", limit)
        assert self._watch is not None
        self._watch.follow(query.checkpoint)
        self._start_query()
        self._wait_for_batch()
        while len(self.tally.kills) < kills_until:
            self._round(query)
        rows = self._audit(query)
        self.rows_count += rows
        batches = query.checkpoint.committed()
        self._process.kill()
        self.tally.failures = failures_in(self._process.log_path)  # of all queries so far
        self.tally.moved = self._watch.moved_count
        kills = len(self.tally.kills) - kills_before
        seconds = round(time.monotonic() - began_s, 1)
        self.tally.queries.append(
            {"history": history, "rows": rows, "batches": batches, "kills": kills,
             "seconds": seconds}
        )  # fmt: skip
        self._say(
            f"query {number}: {kills} kills, {rows} rows in {batches} batches, {seconds:.0f} s: "
            + ("exact" if self.verdict.ok else str(self.verdict))
        )
        if not self.verdict.ok:
            raise CampaignError("the copy is not the stream")

    def _made(self, name: str, records_per_trigger: int) -> StreamQuery:
        return StreamQuery(
            self._config.folder / name,
            sink=self._config.sink,
            server=self.broker.url,
            stream=STREAM,
            records_per_trigger=records_per_trigger,
        )

    def _prime(self) -> None:
        """Let one driver leave behind what makes the others start quickly, unless one has."""
        if not self._config.archive.exists():
            self._config.archive.parent.mkdir(exist_ok=True)
            self._query = self._made("query-first", 500)
            self._process.start(
                self._query.command(self._config.archive, make=True), self._query.go()
            )
            self._wait_for_batch()
            self._wait_for_batch()
            self._process.stop(patience_s=_PRIME_S)  # the JVM writes it at its end
            self._query = None

    def _forget_leases(self) -> None:
        """Drop what dead queries hold, or the log would keep all of it and nothing were cold."""
        with suppress(HeadwaterError):
            for one in self.client.leases(STREAM):
                self.client.drop_lease(one.lease_id)

    def _start_query(self) -> None:
        assert self._query is not None
        self._process.start(self._query.command(self._config.archive), self._query.go())

    # ------------------------------------------------------------------ one round

    def _round(self, query: StreamQuery) -> None:
        assert self._watch is not None
        began_s = time.monotonic()
        time.sleep(self._random.uniform(0, 1.0))
        moment = self._wait_for_moment(query)
        phase = self._watch.phase()
        what = self._deck.draw(phase, spare=self._process.spare_ready or not query.has_spares)
        if not self._faults.strike(what):
            self.tally.not_there += 1
            self._missing_in_a_row += 1
            if self._missing_in_a_row > _MISSING_MAX:
                raise CampaignError(f"{what} is not there, whenever it is to be killed")
            self._deck.put_back(what, phase)
            self._wait_for_batch()
            return
        self._missing_in_a_row = 0
        if self._random.random() < 0.8:
            self._wait_for_batch()
        if query.has_spares:
            self._process.keep_spare(query.command(self._config.archive))
        number, seconds = len(self.tally.kills) + 1, round(time.monotonic() - began_s, 1)
        acked, batches = self.recorder.acked_count, query.checkpoint.committed()
        self.tally.kills.append(
            {"what": what, "moment": moment, "phase": phase, "seconds": seconds,
             "acked": acked, "batches": batches}
        )  # fmt: skip
        self._say(
            f"kill {number:3d}: {what} at {moment}, {phase}; {seconds:.1f} s, "
            f"acked {acked}, batches {batches}"
        )

    def _wait_for_moment(self, query: StreamQuery) -> str:
        if self._random.random() < 0.2:
            time.sleep(self._random.uniform(0, 1.0))
            return "any time"
        moment = self._random.choice(stream_faults.MOMENTS)
        with FileWatch(query.folder) as watch:
            came = watch.wait(moment, _MOMENT_S)
        if self._random.random() < 0.5:
            time.sleep(self._random.uniform(0, 0.1))
        return moment.name if came else "any time"

    def _wait_for_batch(self) -> None:
        """Block until one more batch is committed than was."""
        assert self._query is not None
        before = self._query.checkpoint.committed()
        deadline_s = time.monotonic() + _BATCH_TIMEOUT_S
        while self._query.checkpoint.committed() <= before:
            self._complain(deadline_s, "the query to commit a batch")
            time.sleep(0.05)

    def _complain(self, deadline_s: float, what: str) -> None:
        for failure in [load.failure for load in self._loads] + [
            self._upkeep.failure if self._upkeep is not None else None
        ]:
            if failure is not None:
                raise CampaignError(failure)
        code = self._process.exit_code
        if self._query is not None and code is not None:
            reason = self._query.may_end(code, self._process.log_tail(3))
            if reason is None:
                raise CampaignError(f"the query ended with {code}:\n{self._process.log_tail()}")
            count(self.tally.ended, reason)
            self._start_query()
        if time.monotonic() > deadline_s:
            raise CampaignError(f"waited too long for {what}:\n{self._process.log_tail()}")

    # ------------------------------------------------------------------ the audit

    def _drain(self) -> None:
        """Send nothing new, and wait until every record that wants an answer has one."""
        for load in self._loads:
            load.pause()
        deadline_s = time.monotonic() + _DRAIN_S
        while any(load.unanswered for load in self._loads):
            self._complain(deadline_s, "every record to be answered")
            time.sleep(0.05)

    def _audit(self, query: StreamQuery) -> int:
        """Let the query catch up with a stream at rest; judge its copy, and the stream itself."""
        assert self._upkeep is not None
        self._drain()
        began_ns = time.monotonic_ns()
        ends = {
            int(one.partition): int(one.high_watermark)
            for one in self.client.describe(STREAM).partitions
        }
        deadline_s = time.monotonic() + _BATCH_TIMEOUT_S
        while query.checkpoint.ends(query.checkpoint.committed() - 1) != ends:
            self._complain(deadline_s, "the query to copy everything")
            time.sleep(0.1)
        copied = query.read()
        self._upkeep.pause()
        with self.recorder.history() as history:
            stream = read_through_broker(self.client, STREAM)
            self.verdict.add(check_reading(history, stream))
            found = copies.judge_copy(history, copied, ends, began_ns=began_ns, stream=stream)
            self.verdict.add(found)
        self._upkeep.resume()
        for load in self._loads:
            load.resume()
        return sum(map(len, copied.values()))

    def facts(self) -> dict[str, Any]:
        """Return the raw numbers of the run."""
        tally, upkeep = self.tally, self._upkeep
        return {
            "rounds": self._config.rounds,
            "sink": self._config.sink,
            "kills_count": len(tally.kills),
            "acked": self.recorder.acked_count,
            "sent": self.recorder.sent_count,
            "rows_copied": self.rows_count,
            "by_what": tally.of("what"),
            "by_phase": tally.of("phase"),
            "by_moment": tally.of("moment"),
            "upkeep": upkeep.done if upkeep is not None else {},
            "upkeep_failed": upkeep.failed if upkeep is not None else {},
            **asdict(tally),
        }
