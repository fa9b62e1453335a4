"""Bytes that nobody should send, for every decoder and every door: see README.md."""
