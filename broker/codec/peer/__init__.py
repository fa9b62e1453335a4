"""Formats of what brokers say to each other."""
