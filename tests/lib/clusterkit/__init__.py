"""A real cluster for tests, and a load that notes every promise."""
