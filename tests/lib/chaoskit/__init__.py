"""Chaos over real processes: the faults, the cut links, and the clients' observations."""
