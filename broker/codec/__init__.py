"""Bytes to values and back: record batches, indexes, envelopes, digests. Pure: no I/O."""
