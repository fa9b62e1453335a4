"""Formats of messages that clients and brokers exchange over Flight."""
