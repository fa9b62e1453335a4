"""An Airflow of its own for these tests: a fresh home and database, no examples, our DAG folder."""

from __future__ import annotations

import os
import tempfile

import pytest

from airflowkit import DAGS, airflow

# Airflow reads these when it is imported, so they are set before any test module is.
_home = tempfile.TemporaryDirectory(prefix="headwater-airflow-")
os.environ.update(
    AIRFLOW_HOME=_home.name,
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
)


@pytest.fixture(scope="session", autouse=True)
def database() -> None:
    """Make Airflow's database once."""
    airflow("db", "migrate")
