"""Proofs that a table, its objects and its statistics are what this history wrote."""
