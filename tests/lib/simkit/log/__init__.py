"""The simulated life of one log, its faults and mutants."""
