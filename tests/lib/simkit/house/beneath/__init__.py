"""Raft beneath the brokers of a house."""
