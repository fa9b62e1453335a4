"""DAGs from a file: each entry of ``headwater.toml`` is one DAG that runs one Headwater job.

Only Airflow and the standard library are imported. A task starts the command ``headwater job`` in
a separate environment and reads the job's result from the last line that it prints. The table holds
the progress of every job, so a run that is late, repeated or killed is harmless. A data interval
only gives the end of a run that is scheduled or part of a backfill.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable

CONFIG_VARIABLE: Final = "HEADWATER_AIRFLOW_CONFIG"
JOBS: Final = ("ingest", "backfill", "compact", "snapshot", "verify")

# Any other run (triggered by hand or by an asset) appends all records that there are. A run by hand
# may have an interval, too: Airflow's page fills in a logical date, before which it ends.
_UP_TO_INTERVAL_END: Final = (
    "{% if dag_run.run_type in ('scheduled', 'backfill') and data_interval_end %}"
    "--to-timestamp {{ data_interval_end.isoformat() }}{% endif %}"
)
_EXTRA_WORDS: Final = {"ingest": "--available-now", "backfill": _UP_TO_INTERVAL_END}
_TAKES_TABLE: Final = frozenset({"ingest", "backfill"})
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}\Z")
_PLACE: Final = re.compile(r"/|[a-z][a-z0-9+.-]*:/")  # an absolute path, or an address
_START: Final = datetime(2020, 1, 1, tzinfo=UTC)  # the first interval that a backfill may ask for


class ConfigError(ValueError):
    """The file of entries is not valid; Airflow shows the text as an import error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that all entries share."""

    command: tuple[str, ...]
    server: str | None
    pool: str
    retries: int
    timeout_minutes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """One DAG: a job on a stream, with its schedule."""

    job: str
    name: str
    stream: str
    table: str | None
    schedule: str | None  # cron, UTC
    after: tuple[str, ...]  # "<job>/<name>" of the entries whose runs start this one
    arguments: tuple[str, ...]

    @property
    def dag_id(self) -> str:
        """Return the DAG's id: ``headwater_<job>__<name>``."""
        return f"headwater_{self.job}__{self.name}"


def dags_of(job: str) -> dict[str, DAG]:
    """Return the DAGs of one job by their ids, for a DAG file's globals.

    Raises:
        ConfigError: the file has an entry that is not valid.
    """
    settings, entries = load(config_path())
    return {entry.dag_id: _dag(settings, entry) for entry in entries if entry.job == job}


def config_path() -> Path:
    """Return ``$HEADWATER_AIRFLOW_CONFIG``, else ``headwater.toml`` beside this file."""
    chosen = os.environ.get(CONFIG_VARIABLE)
    return Path(chosen) if chosen else Path(__file__).with_name("headwater.toml")


def load(path: Path) -> tuple[Settings, list[ScheduledJob]]:
    """Read and check the file of entries."""
    try:
        body = tomllib.loads(path.read_text())
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path}: {cause}") from cause
    shared = _take(body.pop("shared", {}), f"{path}: [shared]", _SHARED_KEYS)
    settings = Settings(
        command=tuple(shared.get("command", ["headwater"])),
        server=shared.get("server"),
        pool=shared.get("pool", "default_pool"),
        retries=shared.get("retries", 3),
        timeout_minutes=shared.get("timeout_minutes", 360),
    )
    unknown = set(body) - set(JOBS)
    if unknown:
        raise ConfigError(f"{path}: no job is called {sorted(unknown)}; the jobs are {list(JOBS)}")
    entries = [_entry(job, raw, f"{path}: [[{job}]]") for job in JOBS for raw in body.get(job, [])]
    names = {f"{entry.job}/{entry.name}" for entry in entries}
    if len(names) != len(entries):
        raise ConfigError(f"{path}: two entries of one job have the same name; give them others")
    for entry in entries:
        for wanted in entry.after:
            if wanted not in names:
                raise ConfigError(
                    f"{path}: after = {wanted!r} names no entry; the entries are {sorted(names)}"
                )
    return settings, entries


_SHARED_KEYS: Final = {
    "command": list, "server": str, "pool": str, "retries": int, "timeout_minutes": int,
}  # fmt: skip
_ENTRY_KEYS: Final = {
    "name": str, "stream": str, "table": str, "schedule": str, "after": list, "arguments": list,
}  # fmt: skip


def _entry(job: str, raw: Any, where: str) -> ScheduledJob:
    given = _take(raw, where, _ENTRY_KEYS)
    stream = given.get("stream", "")
    name = given.get("name", stream)
    if not _NAME.match(stream) or not _NAME.match(name):
        raise ConfigError(
            f"{where}: give a stream, and also a name if two entries have the same stream"
        )
    if (job in _TAKES_TABLE) != ("table" in given):
        needs = "needs" if job in _TAKES_TABLE else "takes no"
        raise ConfigError(f"{where} {name}: {needs} table")
    if "table" in given and not _PLACE.match(given["table"]):
        # A task runs in a folder that Airflow deletes afterwards, with a relative table inside.
        raise ConfigError(
            f"{where} {name}: table = {given['table']!r} is relative, and Airflow deletes a task's "
            "folder at its end; give an absolute path or an address such as s3://…"
        )
    if ("schedule" in given) == ("after" in given):
        raise ConfigError(f"{where} {name}: give either schedule (cron) or after (entries)")
    return ScheduledJob(
        job=job,
        name=name,
        stream=stream,
        table=given.get("table"),
        schedule=given.get("schedule"),
        after=tuple(given.get("after", ())),
        arguments=tuple(map(str, given.get("arguments", ()))),
    )


def _take(raw: Any, where: str, keys: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} must be a table")
    for key, value in raw.items():
        if key not in keys:
            raise ConfigError(f"{where}: unknown key {key!r}; known are {sorted(keys)}")
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            raise ConfigError(f"{where}: {key} must be of type {keys[key].__name__}")
    return raw


def _asset(key: str) -> Asset:
    """Return the asset of an entry; each run adds an event with the ends of the table."""
    return Asset(name=f"headwater/{key}", uri=f"headwater://{key}")


def _dag(settings: Settings, entry: ScheduledJob) -> DAG:
    schedule: Any = [_asset(key) for key in entry.after]
    if entry.schedule is not None:
        # In Airflow 3 a plain cron text gives empty intervals: their begin equals their end.
        schedule = CronDataIntervalTimetable(entry.schedule, timezone="UTC")
    dag = DAG(
        entry.dag_id,
        description=f"headwater job {entry.job} over stream {entry.stream}",
        schedule=schedule,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        tags=["headwater", entry.job, entry.stream],
        doc_md=__doc__,
    )
    asset = _asset(f"{entry.job}/{entry.name}")
    BashOperator(
        task_id=entry.job,
        dag=dag,
        bash_command=_command(settings, entry),
        append_env=True,
        output_processor=json.loads,
        outlets=[asset],
        post_execute=partial(_tell, asset),
        pool=settings.pool,
        retries=settings.retries,
        retry_delay=timedelta(seconds=30),
        retry_exponential_backoff=True,
        execution_timeout=timedelta(minutes=settings.timeout_minutes),
    )
    return dag


def _command(settings: Settings, entry: ScheduledJob) -> str:
    words = [*settings.command, "job", entry.job, "--stream", entry.stream, "--json"]
    if settings.server is not None:
        words += ["--server", settings.server]
    if entry.table is not None:
        words += ["--table", entry.table]
    # With `exec` the job itself gets the signals by which Airflow ends the task.
    line = f"exec {shlex.join([*words, *entry.arguments])} {_EXTRA_WORDS.get(entry.job, '')}"
    return line.strip() + "\n"


def _tell(
    asset: Asset, context: Mapping[str, Any], result: Mapping[str, Any] | None = None
) -> None:
    """Put the job's result into the asset's event, for the DAGs that run after it."""
    context["outlet_events"][asset].extra = dict(result or {})
