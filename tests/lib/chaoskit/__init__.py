"""Chaos over real processes: who is broken when, how links are cut, and what clients saw."""
