"""The DAGs of `headwater job verify`, one per entry [[verify]] of headwater.toml (airflow)."""

from headwater_jobs import dags_of

globals().update(dags_of("verify"))
