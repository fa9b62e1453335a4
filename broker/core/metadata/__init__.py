"""The metadata state machine: deterministic, total, compare-and-set."""
