"""Interfaces (Protocols) between parts of the broker, and between the broker and the machine.

No type of an outside library crosses a port, except Arrow's batches and buffers. Every port has a
contract suite in tests/contract, which each implementation passes.
"""
