"""Simulated clusters of the product's own shells; see README.md."""
