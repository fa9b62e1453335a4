"""Reads of whole histories without Spark: cuts, moments, newest records, verification."""
