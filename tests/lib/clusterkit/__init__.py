"""A real cluster for tests, and a load that knows what it was promised."""
