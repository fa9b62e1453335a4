"""Ingest from NATS, and the sessions of a data folder."""
