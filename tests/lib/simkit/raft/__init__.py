"""The simulated Raft group, its faults, mutants and judges."""
