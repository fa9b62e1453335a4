"""The DAGs of `headwater job backfill`, one per entry [[backfill]] of headwater.toml (airflow)."""

from headwater_jobs import dags_of

globals().update(dags_of("backfill"))
