"""What the broker needs of the world, and what its rooms need of each other, in our own words.

No type of an outside library crosses these lines except Arrow's batches and buffers. Every port
has a contract suite in tests/contract that each implementation passes.
"""
