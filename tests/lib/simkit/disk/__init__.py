"""Disks that fail, in memory and real."""
