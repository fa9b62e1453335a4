"""Formats of what publishers and brokers say over NATS."""
