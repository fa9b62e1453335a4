"""Shells: threads and tasks that drive the cores and carry out their effects."""
