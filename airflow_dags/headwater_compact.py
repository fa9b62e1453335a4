"""The DAGs of `headwater job compact`, one per entry [[compact]] of headwater.toml (airflow)."""

from headwater_jobs import dags_of

globals().update(dags_of("compact"))
