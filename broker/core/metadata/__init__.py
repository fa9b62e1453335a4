"""The metadata state machine: deterministic, never raises, changes by compare-and-set."""
