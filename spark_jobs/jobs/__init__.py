"""Entry points for `headwater job`, `python -m` and `spark-submit`: one module per job."""
