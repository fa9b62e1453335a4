"""Formats of messages that publishers and brokers exchange over NATS."""
