"""The DAGs of `headwater job ingest`, one per entry [[ingest]] of headwater.toml (airflow)."""

from headwater_jobs import dags_of

globals().update(dags_of("ingest"))
