"""Strangers at every door of a real broker: see README.md."""
