"""Fakes, simulations and servers that tests share; see README.md."""
