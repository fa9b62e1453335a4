"""Formats of messages between brokers."""
