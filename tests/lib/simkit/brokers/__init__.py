"""Brokers and their shells for tests: in memory, on a disk, one partition alone."""
