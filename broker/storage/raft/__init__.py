"""Raft's files."""
