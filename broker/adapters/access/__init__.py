"""The gate that every door of the broker uses, and proofs of identity that need a library."""
