"""The DAGs of `headwater job snapshot`, one per entry [[snapshot]] of headwater.toml (airflow)."""

from headwater_jobs import dags_of

globals().update(dags_of("snapshot"))
