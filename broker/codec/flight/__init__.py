"""Formats of what clients and brokers say over Flight."""
