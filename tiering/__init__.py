"""The cold tier: sealed segments become Parquet files inside one Delta table per stream.

Only ``s3.py`` knows boto3 and only ``delta_table.py`` knows delta-rs; everything else here works
on ports. Nothing is re-exported: import the module that defines the name.
"""
