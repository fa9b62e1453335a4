"""The DAG files: they load, import nothing of ours, and say what an operator may rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import CronDataIntervalTimetable
from airflow.utils.types import DagRunType
from headwater_jobs import JOBS, ConfigError, load
from jinja2 import Template

from airflowkit import DAGS, airflow

EXPECTED = {f"headwater_{job}__orders" for job in JOBS}


@pytest.fixture(scope="module")
def bag() -> DagBag:
    """The folder as Airflow loads it."""
    return DagBag(str(DAGS))


def test_every_job_has_a_dag_and_no_file_fails(bag: DagBag) -> None:
    """One entry of the example file is one DAG."""
    assert bag.import_errors == {}
    assert set(bag.dags) == EXPECTED


def test_a_run_at_a_time_with_retries_in_a_pool(bag: DagBag) -> None:
    """What keeps two runs of one table apart, and a bad minute from paging anybody."""
    for dag in bag.dags.values():
        assert dag.max_active_runs == 1
        assert dag.catchup is False
        for task in dag.tasks:
            assert task.retries == 3
            assert task.pool == "default_pool"
            assert task.execution_timeout == timedelta(hours=6)
            assert [asset.uri for asset in task.outlets] == [f"headwater://{task.task_id}/orders"]


@pytest.mark.parametrize("job", ["ingest", "backfill", "compact"])
def test_intervals_have_a_width(bag: DagBag, job: str) -> None:
    """With plain cron text Airflow 3 gives begin == end, and a hint of no width."""
    timetable = bag.dags[f"headwater_{job}__orders"].timetable
    assert isinstance(timetable, CronDataIntervalTimetable)


def test_what_follows_a_landing_is_started_by_its_asset(bag: DagBag) -> None:
    """A schedule by assets names the entry that lands before."""
    for job, before in {"snapshot": "ingest", "verify": "compact"}.items():
        condition = bag.dags[f"headwater_{job}__orders"].timetable.asset_condition
        assert [asset.uri for asset in condition.objects] == [f"headwater://{before}/orders"]


@pytest.mark.parametrize("kind", list(DagRunType))
def test_only_a_run_by_the_clock_or_of_a_backfill_ends_with_its_interval(
    bag: DagBag, kind: DagRunType
) -> None:
    """A run by hand goes up to now, though Airflow's page gives it a logical date, so an end."""
    (task,) = bag.dags["headwater_backfill__orders"].tasks
    line = Template(task.bash_command).render(
        dag_run=SimpleNamespace(run_type=kind),
        data_interval_end=datetime(2026, 1, 2, tzinfo=UTC),
    )
    ends = kind in {"scheduled", "backfill"}
    assert ("--to-timestamp 2026-01-02T00:00:00+00:00" in line) is ends
    assert ("--to-timestamp" in line) is ends


def test_dag_files_import_nothing_of_ours() -> None:
    """Airflow's environment has none of our packages, and must not need one."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(DAGS)!r})\n"
        "import headwater_ingest, headwater_backfill, headwater_compact\n"
        "import headwater_snapshot, headwater_verify\n"
        "ours = {'headwater', 'broker', 'tiering', 'spark_jobs', 'pyspark', 'deltalake'}\n"
        "print(sorted(ours & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_backfill_makes_one_run_per_interval(tmp_path: Path) -> None:
    """`airflow backfill create` sees the DAG, and a run of its own for each day asked for."""
    airflow("dags", "reserialize")
    listed = airflow(
        "backfill", "create", "--dag-id", "headwater_backfill__orders", "--dry-run",
        "--from-date", "2026-01-01", "--to-date", "2026-01-03",
    )  # fmt: skip
    days = [line for line in listed.splitlines() if "2026-01-0" in line]
    assert len(days) >= 3, listed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[ingest]]\nstream = 'a'\nschedule = '@daily'", "needs table"),
        ("[[compact]]\nstream = 'a'\ntable = 't'\nschedule = '@daily'", "takes no table"),
        ("[[ingest]]\nstream = 'a'\ntable = './t'\nschedule = '@daily'", "is relative"),
        ("[[compact]]\nstream = 'a'", "either schedule"),
        ("[[compact]]\nstream = 'a'\nafter = ['ingest/b']", "ingest/b"),
        ("[[compact]]\nstream = 'a b'\nschedule = '@daily'", "give a stream"),
        ("[[compact]]\nstream = 'a'\nschedul = '@daily'", "unknown key 'schedul'"),
        ("[[compact]]\nstream = 1\nschedule = '@daily'", "of type str"),
        ("[[compcat]]\nstream = 'a'", "no job is called"),
        ("[shared]\nretries = true", "of type int"),
        ("[[compact]]\nstream='a'\nschedule='@daily'\n[[compact]]\nstream='a'\nschedule='@hourly'",
         "same name"),
        ("[[compact", "end of document"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    """The file, the entry and the key are in the message."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_an_absent_file_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator sees why there are no DAGs."""
    monkeypatch.setitem(os.environ, "HEADWATER_AIRFLOW_CONFIG", "/nowhere/headwater.toml")
    errors = DagBag(str(DAGS)).import_errors
    assert len(errors) == len(JOBS)
    assert all("/nowhere/headwater.toml" in text for text in errors.values())
