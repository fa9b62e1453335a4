"""Key compaction of a local log: which records are the last of their keys, and the rewriting."""
