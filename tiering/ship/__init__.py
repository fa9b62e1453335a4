"""Segments become cold: plan, write, upload, commit, compact; claims of histories."""
