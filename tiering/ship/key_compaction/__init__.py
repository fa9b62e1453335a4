"""Brings segments into the Delta table: plan, write, upload, commit, compact; claims."""
