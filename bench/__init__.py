"""Benchmarks: Headwater and its peers, side by side in one run. ``python -m bench --help``."""
