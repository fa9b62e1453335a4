"""The cold tier: sealed segments become Parquet files inside one Delta table per stream.

Only ``store/s3.py`` knows boto3 and only ``table/delta_*.py`` know delta-rs; everything else here
works on ports. Nothing is re-exported: import the module that defines the name.
"""
