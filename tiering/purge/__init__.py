"""Deletes the table of a deleted stream."""
