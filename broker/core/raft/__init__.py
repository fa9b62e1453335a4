"""Raft, sans I/O: `RaftCore.step(now_ms, event) -> effects`."""
