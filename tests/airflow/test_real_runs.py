"""One real run of each DAG: a real broker, stream and table, Spark on this machine.

Airflow's environment has none of that: the tasks find the command of ``.venv`` through their file,
as they would on an operator's machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import select

from airflowkit import DAGS

COMMAND = Path(__file__).parents[2] / ".venv" / "bin" / "headwater"
KEYS = 40
RECORDS = 400


@dataclass(frozen=True)
class Site:
    """A running Headwater with one stream."""

    server: str
    folder: Path
    bag: DagBag

    def run(self, job: str) -> dict[str, Any]:
        """Run a DAG's task as Airflow does; return the content of its asset's event."""
        dag = self.bag.dags[f"headwater_{job}__orders"]
        run = dag.test(logical_date=datetime(2026, 1, 2, tzinfo=UTC))
        assert run.state == "success", f"{dag.dag_id}: {run.state}"
        with create_session() as session:
            events = session.scalars(select(AssetEvent).order_by(AssetEvent.id)).all()
        extra: dict[str, Any] = events[-1].extra
        return extra


def headwater(*words: str, text: str | None = None) -> str:
    """Run our command in its own environment."""
    done = subprocess.run(
        [str(COMMAND), *words], input=text, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"headwater {words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start everything, publish to one stream, point the DAGs at it."""
    folder = tmp_path_factory.mktemp("site")
    ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [str(COMMAND), "up", "--data", str(folder / "data"), *ports],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        runtime = folder / "data" / "headwater.json"
        deadline = time.monotonic() + 120
        while not runtime.exists():
            assert up.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < deadline, (folder / "up.log").read_text()
            time.sleep(0.1)
        server = json.loads(runtime.read_text())["flight"]
        headwater("stream", "create", "orders", "--server", server)
        lines = "\n".join(json.dumps({"id": n % KEYS, "n": n}) for n in range(RECORDS))
        headwater(
            "publish", "orders", "--key-field", "id", "--via", "flight", "--server", server,
            text=lines + "\n",
        )  # fmt: skip
        headwater("tier", "flush", "orders", "--server", server)
        text = (DAGS / "headwater.toml").read_text()
        text = text.replace('command = ["headwater"]', f"command = [{json.dumps(str(COMMAND))}]")
        text = text.replace("grpc://127.0.0.1:7410", server)
        text = text.replace("/srv/lake/", f"{folder}/lake/")
        config = folder / "headwater.toml"
        config.write_text(text)
        os.environ["HEADWATER_AIRFLOW_CONFIG"] = str(config)
        bag = DagBag(str(DAGS))
        assert bag.import_errors == {}
        yield Site(server, folder, bag)
    finally:
        os.environ.pop("HEADWATER_AIRFLOW_CONFIG", None)
        up.terminate()
        up.wait(60)


def test_ingest_lands_every_record_and_tells_how_far(site: Site) -> None:
    """The event's extra has the table's ends, for DAGs that run when data has landed."""
    extra = site.run("ingest")
    assert extra["records"] == RECORDS
    assert extra["ends"] == {"0": RECORDS}
    assert site.run("ingest")["records"] == 0, "a second run finds nothing left to do"


def test_a_backfill_by_hand_goes_up_to_now(site: Site) -> None:
    """The run has a logical date, whose interval ended before the first record."""
    assert site.run("backfill")["records"] == RECORDS


def test_snapshot_has_one_row_for_each_key(site: Site) -> None:
    """Forty keys in four hundred records."""
    extra = site.run("snapshot")
    assert extra["records"] == KEYS
    assert extra["ends"] == {"0": RECORDS}


def test_compact_and_verify_leave_the_history_as_it_was(site: Site) -> None:
    """What was compacted is proved again."""
    site.run("compact")
    assert site.run("verify")["records"] == RECORDS
