"""Time, links and chance of a simulation."""
