"""Maintenance of tables: key snapshots, compaction, verification. See README.md."""
