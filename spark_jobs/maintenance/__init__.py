"""What keeps tables in shape: key snapshots, compaction, verification. See README.md."""
