"""Reads of a partition that every service of the broker serves alike."""
