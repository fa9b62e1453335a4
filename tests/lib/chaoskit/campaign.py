"""A chaos run over real processes: load, stories, then every replica apart, and the judge.

The clients of `loads.py` run all the time. At the end the load stops, everything is answered, and
the unified read, the table and each broker's own disk are read and judged with the history, as the
simulator's runs are; so is what the members of groups saw.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import HeadwaterError
from broker.model.raft import RaftName
from chaoskit.actors.group_load import GroupVerdict
from chaoskit.cluster import ChaosError
from chaoskit.guards import ACTOR
from chaoskit.loads import Loads, LoadsConfig
from chaoskit.permits import refused_needs
from chaoskit.process_cluster import ProcessCluster
from chaoskit.recorder import ChaosRecorder
from chaoskit.runner import ChaosRunner, Tally
from chaoskit.schedule import Schedule, plan
from chaoskit.stories import STORIES, Need, Story
from checkkit.anomalies import Verdict
from checkkit.check_groups import GivenUp
from checkkit.readings import Reading
from crashkit.reads import final_table, read_plain_delta, read_unified, verify_fully
from headwater.client import Client
from headwater.client.group.calls import monotonic_ms

STREAM: Final = "chaos"
_SUBJECT: Final = "chaos.in"
_SMALL_DISK_BYTES: Final = 256 * 1024 * 1024
_DRAIN_S: Final = 150.0
_FLUSH_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosConfig:
    """What to run."""

    minutes: float
    seed: int
    folder: Path
    brokers: int = 3
    partitions: int = 2
    records_per_s: int = 100  # of each NATS publisher
    session_ms: int = 1_500
    raft: RaftName = "own"
    stories: tuple[Story, ...] = STORIES
    times: int = 0  # how many stories at least
    small_disks: bool = True  # where the machine permits them
    secure: bool = False  # TLS and identities at the doors, grants, quotas; their stories
    forked: bool = False  # brokers start by a fork, not as `python -m broker`


class ChaosCampaign:
    """One run, from empty directories to the verdict. Call :meth:`close` afterwards."""

    def __init__(self, config: ChaosConfig, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self.recorder = ChaosRecorder()
        self.verdict = Verdict()
        self.tally = Tally()
        refused = refused_needs(secure=config.secure)
        if not config.small_disks:
            refused.setdefault(Need.SMALL_DISKS, "not wanted in this run")
        self.schedule: Schedule = plan(
            config.seed,
            minutes=config.minutes,
            brokers=config.brokers,
            partitions=config.partitions,
            refused=refused,
            stories=config.stories,
            times=config.times,
        )
        self.cluster = ProcessCluster(
            config.folder,
            count=config.brokers,
            stream=STREAM,
            settings={
                "lake": {"check_interval_ms": 200},
                "cluster": {"session_ms": config.session_ms, "raft": config.raft},
            },
            forked=config.forked,
            guarded=config.secure,
            small_disk_bytes=None if Need.SMALL_DISKS in refused else _SMALL_DISK_BYTES,
        )
        self.groups: list[GroupVerdict] = []
        self._given_up: list[GivenUp] = []
        self._loads: Loads | None = None

    def run(self) -> Verdict:
        """Start, break, heal, read and judge.

        Raises:
            ChaosError: the cluster did not become whole again, or stopped acknowledging.
        """
        self.cluster.start_all()
        self._create_stream()
        self._loads = loads = self._made_loads()
        loads.start()
        runner = ChaosRunner(
            self.cluster,
            self.schedule,
            progress=self.recorder.acked_in,
            say=self._say,
            check=loads.complain,
            forgive=lambda *election: self._forgive(loads, *election),
        )
        self.tally = runner.tally
        runner.run()
        loads.complain()
        finals = self._read_everything(loads)
        self.verdict = self.recorder.judge(finals)
        return self.verdict

    def close(self) -> None:
        """End everything that was started. Blocks."""
        if self._loads is not None:
            self._loads.stop()
        self.cluster.close()

    # ------------------------------------------------------------------ load

    def _create_stream(self) -> None:
        dice = random.Random(self._config.seed)
        with self.cluster.client() as client:
            created = client.create_stream(
                STREAM,
                subject=_SUBJECT,
                partitions=self._config.partitions,
                puback=True,
                segment_bytes_max=dice.choice([64 * 1024, 256 * 1024]),
                segment_age_ms_max=dice.choice([1000, 3000]),
                local_retention_bytes=dice.choice([0, 256 * 1024, 1024 * 1024]),
                dedup_window_ms=300_000,
            )
        self.cluster.stream_uuid = created.uuid

    def _made_loads(self) -> Loads:
        config = self._config
        return Loads(
            LoadsConfig(
                url=self.cluster.url,
                liftbridge=self.cluster.liftbridge,
                nats_port=self.cluster.nats.port,
                stream=STREAM,
                subject=_SUBJECT,
                partitions=config.partitions,
                records_per_s=config.records_per_s,
                folder=config.folder / "members",
                seed=config.seed,
                login=self.cluster.login(ACTOR),
            ),
            self.recorder,
        )

    def _forgive(self, loads: Loads, partition: int, end: int, began_s: float) -> None:
        """Note an unclean election; a producer may miss records of its own after it."""
        self.recorder.forgive(partition, end)
        since_ms = int(1000 * began_s)  # as the members' notes have it
        self._given_up.append(GivenUp(str(partition), end, since_ms, monotonic_ms()))
        loads.allow_gaps()

    # ------------------------------------------------------------------ the end

    def _read_everything(self, loads: Loads) -> list[Reading]:
        """Read both tiers, the table, and, with all brokers stopped, each replica's disk."""
        loads.drain(_DRAIN_S)
        with self.cluster.client() as client:
            ends = {
                one.partition: int(one.high_watermark) for one in client.describe(STREAM).partitions
            }
            loads.read_to(ends, _DRAIN_S)
            loads.tell(client)
            verify_fully(client, STREAM)
            finals = [read_unified(client, STREAM)[0]]
            client.tier_flush(STREAM, timeout_ms=_FLUSH_MS)
            finals += self._read_shipped(client)
            proved = verify_fully(client, STREAM)
        self._say(f"verified: {proved.records_count} records against the ledger and the logs")
        loads.stop()
        self.groups = loads.judge_groups(ends, self._given_up)
        return [*finals, *self.cluster.final_reads()]

    def _read_shipped(self, client: Client) -> list[Reading]:
        began_ns = time.monotonic_ns()
        unified, certificate = read_unified(client, STREAM)
        if certificate.table_version is None:
            raise ChaosError("there is no table after a flush")
        stream = client.stream(STREAM)
        uri = f"{self.cluster.lake_uri}/{stream.namespace}/{stream.table_name}"
        rows = read_plain_delta(uri, certificate.table_version, {})
        cold_ends = {number: part.cold_end for number, part in unified.parts.items()}
        return [unified, final_table(rows, cold_ends, began_ns)]


def errors_of_a_run() -> tuple[type[Exception], ...]:
    """Return what a run may end with that is the system's fault, not the harness's."""
    return (ChaosError, HeadwaterError)
